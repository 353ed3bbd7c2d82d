-- Fast path for writes: merges small fields into existing records of their holders, as run_batch does. Writes the whole
-- batch or nothing. If it returns no rows, nothing was written, and run_batch runs the batch.
with lane as materialized (
    -- First, so that a repeated batch waits here while the first one still runs.
    select l.id from @schema@.journal l where l.id = $1 and l.number < $2 for update
), at as materialized (
    select coalesce($3, date_part('epoch', clock_timestamp())) as t,
        case
            when current_setting('synchronous_commit') = 'off' then set_config('synchronous_commit', 'on', true)
        end as setting
    from lane
), locked as materialized (
    -- The writes whose guards hold. After a wait for a lock, the server checks the conditions again on the new row.
    select u.*, at.t, u.memo is not null and r.memo is null and r.memo_until > 0 as moves
    from at, (
        select $4::text as namespace, u.*
        from unnest(
            $5::text::text[], $6::text::text[], $7::text::text[], $8::text::text[], $9::text::bigint[],
            $10::text::integer[], $11::text::text[], $12::text::text[], $13::text::text[], $14::text::jsonb[],
            $15::text::text[], $16::text::double precision[], $17::text::double precision[]
        ) with ordinality as u(
            key, token, write, base, weight, flags, flow, state, head, data, memo, deadline, expiry, at
        )
        -- Order, limit and any (array[...]) as in fast_claims.sql.
        order by u.key collate "C"
        limit $20
    ) u, @schema@.records r
    where r.namespace = any (array[u.namespace]) and r.key = any (array[u.key])
        and r.alive and (r.expires_at is null or r.expires_at > at.t)
        and r.token = u.token and r.leased_until > at.t and r.base = u.base and r.size + u.weight <= $19
        and case
            when r.large is null then true
            else not r.large ?| array(select jsonb_object_keys(u.data))
        end
    for update of r
), done as (
    update @schema@.records r set
        version = r.version + 1,
        write = u.write,
        written_at = u.t,
        size = r.size + u.weight,
        expires_at = case when u.flags & 32 <> 0 then u.t + u.expiry else r.expires_at end,
        removable_at = case when u.flags & 32 <> 0 then u.t + u.expiry else r.expires_at end,
        deadline = case when u.flags & 16 <> 0 then u.t + u.deadline else r.deadline end,
        memo_until = case when u.memo is not null then u.t + 86400 else r.memo_until end,
        memo = case when u.memo is null then r.memo else @schema@.short(u.memo) end,
        token = case when u.flags & 64 <> 0 then r.token end,
        leased_until = case when u.flags & 64 <> 0 then coalesce($3, date_part('epoch', clock_timestamp())) + $18 else 0 end,
        flow = case when u.head is not null then @schema@.indexed(u.flow) else r.flow end,
        state = case when u.head is not null then @schema@.indexed(u.state) else r.state end,
        head = coalesce(u.head, r.head),
        data = case when u.data is null then r.data else r.data || u.data end
    from locked u
    where (select count(*) from locked) = $20
        and r.namespace = any (array[u.namespace]) and r.key = any (array[u.key])
    returning u.at, r.version, u.t, r.key, u.memo, u.moves
), memos as (
    insert into @schema@.memos as m (namespace, key, body)
        select $4, d.key, d.memo from done d where d.memo is not null and @schema@.short(d.memo) is null
        on conflict (namespace, key) do update set body = excluded.body
), moved as (
    delete from @schema@.memos m
        using done d
        where d.moves and @schema@.short(d.memo) is not null
            and m.namespace = any (array[$4]) and m.key = any (array[d.key])
), journal as (
    update @schema@.journal l
        set number = $2, used_at = clock_timestamp(), done = d.ats, done_versions = d.versions,
            codes = '{}', versions = '{}', writes = '{}', bases = '{}'
        from (select array_agg(d.at) as ats, array_agg(d.version) as versions from done d) d
        where l.id = $1 and d.ats is not null
)
select d.at, d.version, d.t from done d
