-- Removes expired records, old tombstones, memos and lanes. Skips locked rows, so that it never waits.

create function @schema@.sweep(
    p_now double precision,         -- null: the server's clock
    p_limit integer
) returns table (namespace text, key text, head text, expired boolean)
language plpgsql volatile
set enable_seqscan = off
as $$
declare
    -- A constant, because the planner would not use the index with clock_timestamp().
    t constant double precision := coalesce(p_now, date_part('epoch', clock_timestamp()));
    v_setting text;
    r record;
begin
    v_setting := set_config('synchronous_commit', 'off', true);
    for r in
        select r_.namespace, r_.key, r_.head, r_.alive, r_.tags, r_.has_parts, r_.memo_until
        from @schema@.records r_
        where r_.removable_at <= t and (r_.token is null or r_.leased_until <= t)
        order by r_.removable_at
        limit p_limit
        for update skip locked
    loop
        if r.has_parts then
            delete from @schema@.parts p where p.namespace = r.namespace and p.key = r.key;
        end if;
        if r.memo_until > t then
            -- Keep the memo of handled updates for a day.
            update @schema@.records r_ set
                version = 0, write = '', base = '', written_at = 0, alive = false, has_parts = false, size = 0,
                parts_size = 0, expires_at = null, removable_at = r_.memo_until, deadline = null, queue = null,
                token = null, leased_until = 0,
                flow = null, state = null, head = null, data = '{}', large = null
                where r_.namespace = r.namespace and r_.key = r.key;
        else
            perform @schema@.remove_row(r.namespace, r.key, r.tags, r.memo_until > 0);
        end if;
        namespace := r.namespace;
        key := r.key;
        head := r.head;
        expired := r.alive;
        return next;
    end loop;

    -- A lane that was not used for this long no longer needs its journal.
    delete from @schema@.journal l where l.id in (
        select l_.id from @schema@.journal l_
        where l_.used_at < now() - interval '10 minutes'
        for update skip locked
    );
end
$$;
