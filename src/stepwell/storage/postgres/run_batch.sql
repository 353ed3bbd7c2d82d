-- Runs a batch of operations in one round trip and one commit. The rules are those of stepwell/storage/reference.py.
--
-- First, all rows of the batch are locked in (namespace, key) order, which rules out deadlocks between batches. The
-- statements after that have newer snapshots, so they see each record together with its memo, tags and parts. A
-- statement that locks and reads at once could combine a new record with an old memo.
-- Then simple operations (each the only one on its key) run as one statement per kind, the others one by one.

-- Returns some parts of a record: those with the names p_chosen -> 'names', or a range in its order (stepwell/record.py).
-- A stable function has the snapshot of the statement that calls it. run_batch sets the planner for it, so that each
-- query reads only the chosen parts, by their primary key.
create function @schema@.parts_of(p_namespace text, p_key text, p_chosen jsonb)
    returns table (name text, weight bigint, body text)
language plpgsql stable
as $$
declare
    v_first constant text := p_chosen ->> 'first';
    v_last constant text := p_chosen ->> 'last';
    v_limit constant bigint := p_chosen ->> 'limit';
begin
    if v_first is null then
        return query select p.name, p.weight, p.body from @schema@.parts p
            where p.namespace = p_namespace and p.key = p_key
                and p.name = any (array(select jsonb_array_elements_text(p_chosen -> 'names')));
    elsif (p_chosen ->> 'reverse')::boolean then
        if v_last is null then
            return query select p.name, p.weight, p.body from @schema@.parts p
                where p.namespace = p_namespace and p.key = p_key and p.name >= v_first
                order by p.name desc limit v_limit;
        else
            return query select p.name, p.weight, p.body from @schema@.parts p
                where p.namespace = p_namespace and p.key = p_key and p.name >= v_first and p.name <= v_last
                order by p.name desc limit v_limit;
        end if;
    elsif v_last is null then
        return query select p.name, p.weight, p.body from @schema@.parts p
            where p.namespace = p_namespace and p.key = p_key and p.name >= v_first
            order by p.name limit v_limit;
    else
        return query select p.name, p.weight, p.body from @schema@.parts p
            where p.namespace = p_namespace and p.key = p_key and p.name >= v_first and p.name <= v_last
            order by p.name limit v_limit;
    end if;
end
$$;

create function @schema@.run_batch(
    p_lane text,
    p_number bigint,
    p_now double precision,         -- null: the server's clock
    p_lock_timeout text,            -- null: keep the setting of the connection
    p_needed bigint,                -- number of keys that need a row
    p_kinds smallint[],             -- 1 get, 2 claim, 3 apply, 4 release
    p_namespaces text[],
    p_keys text[],
    p_flags integer[],
    p_tokens text[],
    p_leases double precision[],
    p_writes text[],
    p_bases text[],
    p_versions bigint[],
    p_version_writes text[],
    p_flows text[],
    p_states text[],
    p_heads text[],
    p_data jsonb[],
    p_large jsonb[],
    p_unset jsonb[],
    p_tags jsonb[],
    p_deadlines double precision[],
    p_expiries double precision[],
    p_memos text[],
    p_parts jsonb[],
    p_weights bigint[],
    p_queues text[],                -- without the time, which is added here
    p_limits bigint[],
    -- Of a get: the parts to return; of an apply: the parts to delete.
    p_ranges jsonb[]
) returns table (
    at bigint,
    code smallint,
    clock double precision,
    version bigint,
    write text,                     -- of an applied change: null if it is the given one
    base text,                      -- the same
    written_at double precision,
    head text,
    data jsonb,
    large jsonb,
    tags text[],
    expires_at double precision,
    deadline double precision,
    queue text,
    memo text,
    amount double precision,        -- remaining seconds, or bytes
    part_names text[],
    part_bodies text[]
)
language plpgsql volatile
-- Forces index lookups, however many rows there are when the plan is made.
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set plan_cache_mode = force_generic_plan
as $$
declare
    c_day constant double precision := 86400;
    c_record constant smallint := 1;
    c_claimed constant smallint := 2;
    c_taken constant smallint := 3;
    c_applied constant smallint := 4;
    c_lease_lost constant smallint := 5;
    c_replaced constant smallint := 6;
    c_changed constant smallint := 7;
    c_too_large constant smallint := 8;
    c_exists constant smallint := 9;
    f_replace constant integer := 1;
    f_delete constant integer := 2;
    f_forget constant integer := 4;
    f_fresh constant integer := 8;
    f_deadline constant integer := 16;
    f_expiry constant integer := 32;
    f_keep constant integer := 64;
    f_returning constant integer := 128;
    f_renew constant integer := 256;
    f_parts constant integer := 512;
    f_simple constant integer := 1024;
    f_needs_row constant integer := 2048;
    f_queue constant integer := 4096;
    f_absent constant integer := 8192;

    t double precision;
    v_setting text;
    v_writes constant boolean := 3 = any (p_kinds);
    v_gets constant boolean := 1 = any (p_kinds);
    v_claims constant boolean := 2 = any (p_kinds);
    v_count constant integer := cardinality(p_keys);
    v_claimed bigint;
    v_simple bigint;
    -- The operations whose rows are locked. Rows that are inserted later are ignored, because locking them would
    -- break the lock order.
    v_rows bigint[] := '{}';
    v_locked bigint;
    v_done bigint := 0;
    v_cleanup boolean := false;

    -- Simple writes that are done: positions and new versions.
    d_ats bigint[] := '{}';
    d_versions bigint[] := '{}';

    op record;
    r record;
    v_there boolean;
    v_alive boolean;
    v_held boolean;
    v_new boolean;
    v_dropped boolean;
    v_keep boolean;
    v_returning boolean;
    v_memo_until double precision;
    v_expires double precision;
    v_names text[];
    v_tags text[];
    v_size bigint;
    v_all bigint;
    -- The size of the parts: all of them before the change, those that it deletes or replaces, and those that it sets.
    v_parts bigint;
    v_freed bigint;
    v_added bigint;

    v_journal constant boolean := v_writes and p_lane is not null;
    j record;
    j_codes smallint[] := '{}';
    j_versions bigint[] := '{}';
    j_writes text[] := '{}';
    j_bases text[] := '{}';
begin
    -- A column of equal items is sent as one item.
    if v_count > 1 then
        if cardinality(p_kinds) = 1 then
            p_kinds := array_fill(p_kinds[1], array[v_count]);
        end if;
        if cardinality(p_namespaces) = 1 then
            p_namespaces := array_fill(p_namespaces[1], array[v_count]);
        end if;
        if cardinality(p_flags) = 1 then
            p_flags := array_fill(p_flags[1], array[v_count]);
        end if;
        if cardinality(p_leases) = 1 then
            p_leases := array_fill(p_leases[1], array[v_count]);
        end if;
        if cardinality(p_limits) = 1 then
            p_limits := array_fill(p_limits[1], array[v_count]);
        end if;
    end if;

    if current_setting('transaction_read_only') = 'on' then
        raise exception 'this server is read-only' using errcode = 'read_only_sql_transaction';
    end if;
    if p_lock_timeout is not null then
        v_setting := set_config('lock_timeout', p_lock_timeout, true);
    end if;
    if not v_writes then
        -- A crash may lose a claim: its holder then gets LeaseLost. So claims do not wait for the disk.
        v_setting := set_config('synchronous_commit', 'off', true);
    elsif current_setting('synchronous_commit') = 'off' then
        v_setting := set_config('synchronous_commit', 'on', true);
    end if;

    -- The lane is locked first, so that a repeated batch waits here while the first one still runs.

    if v_journal then
        loop
            select l.number, l.done, l.done_versions, l.codes, l.versions, l.writes, l.bases into j
                from @schema@.journal l where l.id = p_lane for update;
            exit when found;
            insert into @schema@.journal (id, number, used_at) values (p_lane, 0, clock_timestamp())
                on conflict do nothing;
        end loop;
        if j.number > p_number then
            raise exception 'batch % of this lane is outdated', p_number using errcode = 'SW001';
        elsif j.number = p_number then
            return query
                select u.at,
                    coalesce(j.codes[u.at], c_applied),
                    coalesce(p_now, date_part('epoch', clock_timestamp())),
                    coalesce(r_.version, d.version, j.versions[u.at]),
                    coalesce(r_.write, j.writes[u.at]),
                    coalesce(r_.base, j.bases[u.at]),
                    -- The record may be newer than the result, but it is complete.
                    r_.written_at, r_.head, r_.data, r_.large, r_.tags, r_.expires_at, r_.deadline, r_.queue,
                    null::text, j.versions[u.at]::double precision, null::text[], null::text[]
                from unnest(p_kinds, p_namespaces, p_keys, p_flags)
                    with ordinality as u(kind, namespace, key, flags, at)
                left join unnest(j.done, j.done_versions) d(at, version) on d.at = u.at
                left join @schema@.records r_
                    on u.flags & f_returning <> 0 and r_.namespace = u.namespace and r_.key = u.key and r_.alive
                        and coalesce(j.codes[u.at], c_applied) = c_applied
                where u.kind = 3;
            return;
        end if;
    elsif p_lane is not null then
        -- A delayed batch that arrives after a newer one must not claim anything.
        update @schema@.journal l set number = p_number, used_at = clock_timestamp()
            where l.id = p_lane and l.number < p_number;
        if not found then
            insert into @schema@.journal (id, number, used_at) values (p_lane, p_number, clock_timestamp())
                on conflict do nothing;
            if not found then
                raise exception 'batch % of this lane is outdated', p_number using errcode = 'SW001';
            end if;
        end if;
    end if;

    -- Insert missing rows, then lock all rows.

    if v_writes or v_claims or 4 = any (p_kinds) then
        if p_needed > 0 then
            select count(*) into v_locked
                from unnest(p_namespaces, p_keys, p_flags) u(namespace, key, flags)
                join @schema@.records r_ on r_.namespace = u.namespace and r_.key = u.key
                where u.flags & f_needs_row <> 0;
            if v_locked < p_needed then
                insert into @schema@.records (namespace, key)
                    select u.namespace, u.key
                    from unnest(p_namespaces, p_keys, p_flags) u(namespace, key, flags)
                    where u.flags & f_needs_row <> 0
                    order by u.namespace collate "C", u.key collate "C"
                    on conflict do nothing;
                v_cleanup := true;
            end if;
        end if;
        select coalesce(array_agg(x.at), '{}'), count(*) filter (where x.flags & f_needs_row <> 0)
            into v_rows, v_locked
            from (
                select u.at, u.flags
                from unnest(p_kinds, p_namespaces, p_keys, p_flags) with ordinality as u(kind, namespace, key, flags, at)
                join @schema@.records r_ on r_.namespace = u.namespace and r_.key = u.key
                where u.kind <> 1
                order by r_.namespace, r_.key
                for update of r_
            ) x;
        if v_locked < p_needed then
            -- An empty row was removed after the insert. Inserting it now would break the lock order.
            raise exception 'a row is gone' using errcode = 'serialization_failure';
        end if;
    end if;
    t := coalesce(p_now, date_part('epoch', clock_timestamp()));

    -- Simple operations.

    if v_gets then
        return query
            select u.at, c_record, t, r_.version, r_.write, r_.base, r_.written_at, r_.head, r_.data, r_.large,
                r_.tags, r_.expires_at, r_.deadline, r_.queue, null::text, null::double precision, null::text[],
                null::text[]
            from unnest(p_kinds, p_namespaces, p_keys, p_flags) with ordinality as u(kind, namespace, key, flags, at)
            join @schema@.records r_ on r_.namespace = u.namespace and r_.key = u.key
            where u.kind = 1 and u.flags & f_simple <> 0
                and r_.alive and (r_.expires_at is null or r_.expires_at > t);
        select v_done + count(*) into v_done
            from unnest(p_kinds, p_flags) u(kind, flags) where u.kind = 1 and u.flags & f_simple <> 0;
    end if;

    if v_claims then
        return query
            update @schema@.records r_
                set token = u.token, leased_until = t + u.lease
                from unnest(p_kinds, p_namespaces, p_keys, p_flags, p_tokens, p_leases)
                    with ordinality as u(kind, namespace, key, flags, token, lease, at)
                where u.kind = 2 and u.flags & f_simple <> 0
                    and r_.namespace = u.namespace and r_.key = u.key
                    and (r_.token is null or r_.leased_until <= t or r_.token = u.token)
                returning u.at, c_claimed, t,
                    -- An expired record is not visible, but its base is still needed as a guard.
                    case when r_.alive and (r_.expires_at is null or r_.expires_at > t) then r_.version end,
                    r_.write, r_.base, r_.written_at, r_.head, r_.data, r_.large, r_.tags, r_.expires_at, r_.deadline,
                    r_.queue,
                    case
                        when r_.memo_until <= t then null
                        when r_.memo is not null then r_.memo
                        else (select m.body from @schema@.memos m where m.namespace = r_.namespace and m.key = r_.key)
                    end,
                    null::double precision, null::text[], null::text[];
        get diagnostics v_claimed = row_count;
        select count(*) into v_simple
            from unnest(p_kinds, p_flags) u(kind, flags) where u.kind = 2 and u.flags & f_simple <> 0;
        v_done := v_done + v_simple;
        if v_claimed < v_simple then
            return query
                select u.at, c_taken, t, null::bigint, null::text, null::text, null::double precision, null::text,
                    null::jsonb, null::jsonb, null::text[], null::double precision, null::double precision, null::text,
                    null::text, r_.leased_until - t, null::text[], null::text[]
                from unnest(p_kinds, p_namespaces, p_keys, p_flags, p_tokens)
                    with ordinality as u(kind, namespace, key, flags, token, at)
                join @schema@.records r_ on r_.namespace = u.namespace and r_.key = u.key
                where u.kind = 2 and u.flags & f_simple <> 0 and r_.token <> u.token and r_.leased_until > t;
        end if;
    end if;

    if v_writes then
        -- Merge small fields into existing records of their holders. Writes whose guards fail are handled below.
        with done as (
            update @schema@.records r_ set
                version = r_.version + 1,
                write = u.write,
                written_at = t,
                size = r_.size + u.weight,
                expires_at = case when u.flags & f_expiry <> 0 then t + u.expiry else r_.expires_at end,
                removable_at = case when u.flags & f_expiry <> 0 then t + u.expiry else r_.expires_at end,
                deadline = case when u.flags & f_deadline <> 0 then t + u.deadline else r_.deadline end,
                memo_until = case when u.memo is not null then t + c_day else r_.memo_until end,
                memo = case when u.memo is null then r_.memo else @schema@.short(u.memo) end,
                token = case when u.flags & f_keep <> 0 then r_.token end,
                leased_until = case when u.flags & f_keep <> 0 then t + u.lease else 0 end,
                flow = case when u.head is not null then @schema@.indexed(u.flow) else r_.flow end,
                state = case when u.head is not null then @schema@.indexed(u.state) else r_.state end,
                head = coalesce(u.head, r_.head),
                data = case when u.data is null then r_.data else r_.data || u.data end
            from unnest(
                p_namespaces, p_keys, p_flags, p_tokens, p_leases, p_writes, p_bases, p_flows, p_states, p_heads,
                p_data, p_deadlines, p_expiries, p_memos, p_weights, p_limits
            ) with ordinality as u(
                namespace, key, flags, token, lease, write, base, flow, state, head,
                data, deadline, expiry, memo, weight, allowed, at
            )
            where u.flags & f_simple <> 0 and u.weight is not null
                and u.at = any (v_rows) and r_.namespace = u.namespace and r_.key = u.key
                and r_.alive and (r_.expires_at is null or r_.expires_at > t)
                and r_.token = u.token and r_.leased_until > t and r_.base = u.base
                and r_.large is null and r_.size + u.weight <= u.allowed
            returning u.at, r_.version
        )
        select coalesce(array_agg(d.at), '{}'), coalesce(array_agg(d.version), '{}')
            into d_ats, d_versions
            from done d;
        v_done := v_done + cardinality(d_ats);
        if cardinality(p_memos) > 0 then
            insert into @schema@.memos as m (namespace, key, body)
                select u.namespace, u.key, u.memo
                from unnest(p_namespaces, p_keys, p_memos) with ordinality as u(namespace, key, memo, at)
                where @schema@.short(u.memo) is null and u.memo is not null and u.at = any (d_ats)
                on conflict (namespace, key) do update set body = excluded.body;
            delete from @schema@.memos m
                using unnest(p_namespaces, p_keys, p_memos) with ordinality as u(namespace, key, memo, at)
                where @schema@.short(u.memo) is not null and u.at = any (d_ats)
                    and m.namespace = u.namespace and m.key = u.key;
        end if;
        return query
            select d.at, c_applied, t, d.version, null::text, null::text, null::double precision, null::text,
                null::jsonb, null::jsonb, null::text[], null::double precision, null::double precision, null::text,
                null::text, null::double precision, null::text[], null::text[]
            from unnest(d_ats, d_versions) d(at, version);
    end if;

    -- Other operations, one by one.

    if v_done < v_count then
        for op in
            select *
            from unnest(
                p_kinds, p_namespaces, p_keys, p_flags, p_tokens, p_leases, p_writes, p_bases, p_versions,
                p_version_writes, p_flows, p_states, p_heads, p_data, p_large, p_unset, p_tags, p_deadlines,
                p_expiries, p_memos, p_parts, p_weights, p_queues, p_limits, p_ranges
            ) with ordinality as u(
                kind, namespace, key, flags, token, lease, write, base, version,
                version_write, flow, state, head, data, large, unset, tags, deadline,
                expiry, memo, parts, weight, queue, allowed, chosen, at
            )
            where u.flags & f_simple = 0 or (u.kind = 3 and u.at <> all (d_ats))
            order by u.at
        loop
            at := op.at;
            code := 0;
            clock := t;
            version := null;
            write := null;
            base := null;
            written_at := null;
            head := null;
            data := null;
            large := null;
            tags := null;
            expires_at := null;
            deadline := null;
            queue := null;
            memo := null;
            amount := null;
            part_names := null;
            part_bodies := null;

            if op.kind = 1 then
                -- One statement has one snapshot, so the parts belong to this version.
                if op.chosen is null then
                    select r_.version, r_.write, r_.base, r_.written_at, r_.head, r_.data, r_.large, r_.tags,
                            r_.expires_at, r_.deadline, r_.queue, p.names, p.bodies
                        into version, write, base, written_at, head, data, large, tags, expires_at, deadline, queue,
                            part_names, part_bodies
                        from @schema@.records r_
                        cross join lateral (
                            select array_agg(p_.name) as names, array_agg(p_.body) as bodies
                            from @schema@.parts p_
                            where op.flags & f_parts <> 0 and p_.namespace = r_.namespace and p_.key = r_.key
                        ) p
                        where r_.namespace = op.namespace and r_.key = op.key
                            and r_.alive and (r_.expires_at is null or r_.expires_at > t);
                else
                    select r_.version, r_.write, r_.base, r_.written_at, r_.head, r_.data, r_.large, r_.tags,
                            r_.expires_at, r_.deadline, r_.queue, p.names, p.bodies
                        into version, write, base, written_at, head, data, large, tags, expires_at, deadline, queue,
                            part_names, part_bodies
                        from @schema@.records r_
                        cross join lateral (
                            select array_agg(p_.name) as names, array_agg(p_.body) as bodies
                            from @schema@.parts_of(r_.namespace, r_.key, op.chosen) p_
                        ) p
                        where r_.namespace = op.namespace and r_.key = op.key
                            and r_.alive and (r_.expires_at is null or r_.expires_at > t);
                end if;
                if found then
                    code := c_record;
                end if;

            elsif op.kind = 2 then
                update @schema@.records r_
                    set token = op.token, leased_until = t + op.lease
                    where r_.namespace = op.namespace and r_.key = op.key and op.at = any (v_rows)
                        and case
                            when op.flags & f_renew <> 0 then r_.token = op.token and r_.leased_until > t
                            else r_.token is null or r_.leased_until <= t or r_.token = op.token
                        end
                    returning r_.version, r_.write, r_.base, r_.written_at, r_.head, r_.data, r_.large, r_.tags,
                        r_.expires_at, r_.deadline, r_.queue, r_.alive, r_.memo_until,
                        case when r_.memo_until > t then r_.memo end
                    into version, write, base, written_at, head, data, large, tags, expires_at, deadline, queue,
                        v_alive, v_memo_until, memo;
                if found then
                    code := c_claimed;
                    if not v_alive or expires_at <= t then
                        version := null;
                    end if;
                    if v_memo_until > t and memo is null then
                        select m.body into memo from @schema@.memos m
                            where m.namespace = op.namespace and m.key = op.key;
                    end if;
                elsif op.flags & f_renew <> 0 then
                    code := c_lease_lost;
                    v_cleanup := true;
                else
                    select r_.leased_until - t into amount from @schema@.records r_
                        where r_.namespace = op.namespace and r_.key = op.key;
                    code := c_taken;
                end if;

            elsif op.kind = 4 then
                update @schema@.records r_ set token = null, leased_until = 0
                    where r_.namespace = op.namespace and r_.key = op.key and op.at = any (v_rows)
                        and r_.token = op.token
                    returning r_.alive into v_alive;
                v_cleanup := v_cleanup or not found or not v_alive;

            else
                v_held := op.token is not null;
                v_keep := op.flags & f_keep <> 0;
                v_returning := op.flags & f_returning <> 0;
                select r_.version, r_.write, r_.base, r_.alive, r_.expires_at, r_.token, r_.leased_until, r_.size,
                        r_.memo_until, r_.tags, r_.has_parts, r_.parts_size, r_.large is not null as has_large
                    into r
                    from @schema@.records r_
                    where r_.namespace = op.namespace and r_.key = op.key and op.at = any (v_rows);
                v_there := found;
                v_alive := v_there and r.alive;

                if v_held and (not v_there or r.token is distinct from op.token or r.leased_until <= t) then
                    code := c_lease_lost;

                elsif op.base <> coalesce(r.base, '') then
                    code := c_replaced;

                elsif op.version is not null and (
                    not v_alive or r.expires_at <= t or r.version <> op.version or r.write <> op.version_write
                ) then
                    code := c_changed;

                elsif op.flags & f_absent <> 0 and v_alive and (r.expires_at is null or r.expires_at > t) then
                    code := c_exists;

                elsif op.flags & f_delete <> 0 then
                    code := c_applied;
                    version := 0;
                    write := '';
                    base := '';
                    if op.flags & f_forget <> 0 and op.tags is not null then
                        -- Also delete the entries of the given tags, in case the stored tags are damaged.
                        delete from @schema@.tagged g
                            where g.key = op.key
                                and g.hash = any (array(
                                    select @schema@.tag_hash(op.namespace, x.tag)
                                    from jsonb_array_elements_text(op.tags) x(tag)
                                ));
                    end if;
                    if v_there then
                        if r.has_parts then
                            delete from @schema@.parts p where p.namespace = op.namespace and p.key = op.key;
                        end if;
                        if op.flags & f_forget <> 0 then
                            delete from @schema@.tagged g
                                where g.key = op.key
                                    and g.hash = any (array(
                                        select @schema@.tag_hash(op.namespace, x.tag) from unnest(r.tags) x(tag)
                                    ));
                            delete from @schema@.memos m where m.namespace = op.namespace and m.key = op.key;
                            v_memo_until := 0;
                            if not v_held and r.token is not null and r.leased_until > t then
                                -- The new base makes the write of another holder fail.
                                base := op.write;
                            end if;
                        else
                            version := r.version + case when v_alive then 1 else 0 end;
                            write := case when v_alive then op.write else r.write end;
                            base := case when v_alive then op.write else r.base end;
                            v_memo_until := case when op.memo is not null then t + c_day else r.memo_until end;
                        end if;
                        update @schema@.records r_ set
                            version = run_batch.version,
                            write = run_batch.write,
                            base = run_batch.base,
                            written_at = case when r_.alive then t else r_.written_at end,
                            alive = false,
                            has_parts = false,
                            size = 0,
                            parts_size = 0,
                            expires_at = null,
                            deadline = null,
                            queue = null,
                            memo_until = v_memo_until,
                            memo = case
                                when op.flags & f_forget <> 0 then null
                                when op.memo is null then r_.memo
                                else @schema@.short(op.memo)
                            end,
                            removable_at = greatest(
                                v_memo_until,
                                case
                                    when run_batch.version = 0 then 0
                                    when r_.alive then t + c_day
                                    else r_.written_at + c_day
                                end
                            ),
                            token = case when v_held and not v_keep then null else r_.token end,
                            leased_until = case
                                when not v_held then r_.leased_until
                                when v_keep then t + op.lease
                                else 0
                            end,
                            flow = null,
                            state = null,
                            head = null,
                            -- Kept, so that the tombstone is found by its tags and can be forgotten too.
                            tags = case when op.flags & f_forget <> 0 then '{}' else r_.tags end,
                            data = '{}',
                            large = null
                            where r_.namespace = op.namespace and r_.key = op.key;
                        v_alive := false;
                    end if;

                else
                    -- An expired record is only hidden: a write of its holder restores it, any other write replaces it.
                    v_new := v_alive and coalesce(r.expires_at <= t, false)
                        and (op.flags & f_fresh <> 0 or not v_held);
                    v_dropped := op.flags & f_replace <> 0 or v_new;
                    v_names := null;
                    if op.large is not null or op.unset is not null or r.has_large then
                        v_names := array(
                            select jsonb_object_keys(op.data)
                            union all select jsonb_object_keys(op.large)
                            union all select jsonb_array_elements_text(op.unset)
                        );
                    end if;

                    v_parts := case when r.has_parts then r.parts_size else 0 end;
                    v_freed := 0;
                    v_added := 0;
                    if op.parts is not null then
                        select coalesce(sum(octet_length(n.key) + octet_length(n.value)), 0) into v_added
                            from jsonb_each_text(op.parts) n where n.value is not null;
                    end if;
                    if r.has_parts and not v_dropped then
                        if op.parts is not null then
                            select coalesce(sum(p.weight), 0) into v_freed
                                from @schema@.parts p
                                where p.namespace = op.namespace and p.key = op.key
                                    and p.name = any (array(select jsonb_object_keys(op.parts)));
                        end if;
                        if op.chosen is not null then
                            select v_freed + coalesce(sum(p.weight), 0) into v_freed
                                from @schema@.parts_of(op.namespace, op.key, op.chosen) p
                                where op.parts is null or not op.parts ? p.name;
                        end if;
                    end if;

                    v_size := op.weight + case when v_dropped then 0 else r.size - v_freed end;
                    if v_size > op.allowed then
                        -- The upper bound exceeds the limit: compute the exact size.
                        select v_parts + coalesce(sum(f.weight), 0),
                                op.weight + coalesce(sum(f.weight) filter (where f.stays), 0)
                                    + case when v_dropped then 0 else v_parts - v_freed end
                            into v_all, v_size
                            from (
                                select octet_length(f.key) + octet_length(f.value) as weight,
                                    not v_dropped and not coalesce(op.data ? f.key, false)
                                        and not coalesce(op.large ? f.key, false)
                                        and not coalesce(op.unset ? f.key, false) as stays
                                from @schema@.records r_,
                                    jsonb_each_text(r_.data || coalesce(r_.large, '{}')) f
                                where r_.namespace = op.namespace and r_.key = op.key
                            ) f;
                    else
                        v_all := v_size;
                    end if;

                    if v_size > op.allowed and v_size > v_all then
                        code := c_too_large;
                        amount := v_size;
                    else
                        code := c_applied;
                        v_expires := case
                            when op.flags & f_expiry <> 0 then t + op.expiry
                            when v_new or (v_held and r.expires_at <= t) then null
                            else r.expires_at
                        end;
                        v_tags := null;
                        if op.tags is not null then
                            v_tags := array(select jsonb_array_elements_text(op.tags));
                        elsif v_new then
                            v_tags := '{}';
                        end if;

                        update @schema@.records r_ set
                            version = case
                                when r_.alive then r_.version + 1
                                else greatest(r_.version + 1, trunc(t * 1e6)::bigint)
                            end,
                            write = op.write,
                            base = case when v_dropped then op.write else r_.base end,
                            written_at = t,
                            alive = true,
                            has_parts = (r_.has_parts and not v_dropped) or op.parts is not null,
                            size = v_size,
                            parts_size = case when v_dropped then 0 else v_parts - v_freed end + v_added,
                            expires_at = v_expires,
                            removable_at = v_expires,
                            deadline = case
                                when op.flags & f_deadline <> 0 then t + op.deadline
                                when v_new then null
                                else r_.deadline
                            end,
                            queue = case
                                when op.flags & f_queue <> 0
                                    then op.queue || lpad(to_hex(trunc(t * 1e6)::bigint), 14, '0')
                                when v_new then null
                                else r_.queue
                            end,
                            memo_until = case when op.memo is not null then t + c_day else r_.memo_until end,
                            memo = case when op.memo is null then r_.memo else @schema@.short(op.memo) end,
                            token = case when v_held and not v_keep then null else r_.token end,
                            leased_until = case
                                when not v_held then r_.leased_until
                                when v_keep then t + op.lease
                                else 0
                            end,
                            flow = case
                                when op.head is not null then @schema@.indexed(op.flow)
                                when not v_new then r_.flow
                            end,
                            state = case
                                when op.head is not null then @schema@.indexed(op.state)
                                when not v_new then r_.state
                            end,
                            head = case
                                when op.head is not null then op.head
                                when not v_new then r_.head
                            end,
                            tags = coalesce(v_tags, r_.tags),
                            data = case
                                when v_dropped then coalesce(op.data, '{}')
                                when v_names is not null then (r_.data - v_names) || coalesce(op.data, '{}')
                                when op.data is not null then r_.data || op.data
                                else r_.data
                            end,
                            -- An unchanged large value is not rewritten.
                            large = case
                                when v_dropped then op.large
                                when op.large is null and (r_.large is null or not r_.large ?| v_names) then r_.large
                                else nullif(
                                    (coalesce(r_.large, '{}') - v_names) || coalesce(op.large, '{}'), '{}'
                                )
                            end
                            where r_.namespace = op.namespace and r_.key = op.key
                            returning r_.version, r_.write, r_.base,
                                case when v_returning then r_.written_at end,
                                case when v_returning then r_.head end,
                                case when v_returning then r_.data end,
                                case when v_returning then r_.large end,
                                case when v_returning then r_.tags end,
                                case when v_returning then r_.expires_at end,
                                case when v_returning then r_.deadline end,
                                case when v_returning then r_.queue end
                            into version, write, base, written_at, head, data, large, tags, expires_at, deadline, queue;

                        if v_tags is not null and v_tags is distinct from r.tags then
                            delete from @schema@.tagged g
                                where g.key = op.key
                                    and g.hash = any (array(
                                        select @schema@.tag_hash(op.namespace, x.tag) from unnest(r.tags) x(tag)
                                    ));
                            insert into @schema@.tagged (hash, key)
                                select distinct @schema@.tag_hash(op.namespace, x.tag), op.key
                                from unnest(v_tags) x(tag)
                                on conflict do nothing;
                        end if;
                        if v_dropped and r.has_parts then
                            delete from @schema@.parts p where p.namespace = op.namespace and p.key = op.key;
                        elsif op.chosen is not null and r.has_parts then
                            delete from @schema@.parts p
                                where p.namespace = op.namespace and p.key = op.key
                                    and p.name = any (array(
                                        select d.name from @schema@.parts_of(op.namespace, op.key, op.chosen) d
                                    ));
                        end if;
                        if op.parts is not null then
                            delete from @schema@.parts p
                                where p.namespace = op.namespace and p.key = op.key
                                    -- With a join, the planner may read all parts of the record.
                                    and p.name = any (array(
                                        select n.key from jsonb_each(op.parts) n where n.value = 'null'
                                    ));
                            insert into @schema@.parts as p (namespace, key, name, weight, body)
                                select op.namespace, op.key, n.key, octet_length(n.key) + octet_length(n.value), n.value
                                from jsonb_each_text(op.parts) n
                                where n.value is not null
                                on conflict (namespace, key, name)
                                    do update set weight = excluded.weight, body = excluded.body;
                        end if;
                        v_alive := true;
                    end if;
                end if;

                if op.memo is not null and code = c_applied and op.flags & f_forget = 0 then
                    if @schema@.short(op.memo) is null then
                        insert into @schema@.memos as m (namespace, key, body) values (op.namespace, op.key, op.memo)
                            on conflict (namespace, key) do update set body = excluded.body;
                    elsif r.memo_until > 0 then
                        delete from @schema@.memos m where m.namespace = op.namespace and m.key = op.key;
                    end if;
                end if;
                v_cleanup := v_cleanup or not v_alive;
                if v_journal then
                    j_codes[op.at] := code;
                    if code = c_applied then
                        j_versions[op.at] := version;
                        if write <> op.write then
                            j_writes[op.at] := write;
                        end if;
                        if base is distinct from coalesce(op.base, op.write) then
                            j_bases[op.at] := base;
                        end if;
                    elsif code = c_too_large then
                        j_versions[op.at] := amount;
                    end if;
                end if;
            end if;
            return next;
        end loop;
    end if;

    if v_cleanup then
        with gone as (
            delete from @schema@.records r_
                using unnest(p_namespaces, p_keys) with ordinality as u(namespace, key, at)
                where u.at = any (v_rows) and r_.namespace = u.namespace and r_.key = u.key
                    and not r_.alive and r_.removable_at <= t and (r_.token is null or r_.leased_until <= t)
                returning r_.namespace, r_.key, r_.tags
        ), memos as (
            delete from @schema@.memos m using gone g where m.namespace = g.namespace and m.key = g.key
        )
        delete from @schema@.tagged t_ using gone g, unnest(g.tags) x(tag)
            where t_.hash = @schema@.tag_hash(g.namespace, x.tag) and t_.key = g.key;
    end if;

    if v_journal then
        update @schema@.journal l
            set number = p_number, used_at = clock_timestamp(), done = d_ats, done_versions = d_versions,
                codes = j_codes, versions = j_versions, writes = j_writes, bases = j_bases
            where l.id = p_lane;
    end if;
end
$$;
