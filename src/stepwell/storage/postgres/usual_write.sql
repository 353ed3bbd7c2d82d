-- usual_writes.sql for one write alone. No row: nothing was written, and the batch function finds out why.
with lane as materialized (
    -- Locked first: the same write, sent again while the first one still runs, waits here.
    select l.id from @schema@.lanes l where l.id = $1 and l.number < $2 for update
), at as materialized (
    select coalesce($3, date_part('epoch', clock_timestamp())) as t,
        case
            when current_setting('synchronous_commit') = 'off' then set_config('synchronous_commit', 'on', true)
        end as durable
    from lane
), done as (
    update @schema@.records r set
        version = r.version + 1,
        write = $7,
        written_at = at.t,
        size = r.size + $9,
        expires_at = case when $10 & 32 <> 0 then at.t + $17 else r.expires_at end,
        removable_at = case when $10 & 32 <> 0 then at.t + $17 else r.expires_at end,
        deadline = case when $10 & 16 <> 0 then at.t + $16 else r.deadline end,
        memo_until = case when $15::text is not null then at.t + 86400 else r.memo_until end,
        token = case when $10 & 64 <> 0 then r.token end,
        leased_until = case when $10::integer & 64 <> 0 then coalesce($3, date_part('epoch', clock_timestamp())) + $18 else 0 end,
        flow = case when $13::text is not null then @schema@.indexed($11) else r.flow end,
        state = case when $13 is not null then @schema@.indexed($12) else r.state end,
        head = coalesce($13, r.head),
        data = case when $14::jsonb is null then r.data else r.data || $14 end
    from at
    where r.namespace = $4 and r.key = $5
        and r.alive and (r.expires_at is null or r.expires_at > at.t)
        and r.token = $6 and r.leased_until > at.t and r.base = $8 and r.size + $9 <= $19
        and case
            when r.large is null then true
            else not r.large ?| array(select jsonb_object_keys($14))
        end
    returning r.version, at.t
), memos as (
    insert into @schema@.memos as m (namespace, key, body)
        select $4, $5, $15 from done where $15 is not null
        on conflict (namespace, key) do update set body = excluded.body
), noted as (
    update @schema@.lanes l
        set number = $2, used_at = clock_timestamp(), done = '{1}', done_versions = array[d.version],
            codes = '{}', versions = '{}', writes = '{}', bases = '{}'
        from done d where l.id = $1
)
select 1::bigint, d.version, d.t from done d
