-- Holders write small fields to records that are there, each to another one, as run_batch makes them, in one plain
-- statement. All of them or none: without a row, or with an error, nothing was written, and the batch function finds
-- out why.
with lane as materialized (
    -- Locked first: the same batch, sent again while the first one still runs, waits here.
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
        write = u.write,
        written_at = at.t,
        size = r.size + u.weight,
        expires_at = case when u.flags & 32 <> 0 then at.t + u.expiry else r.expires_at end,
        removable_at = case when u.flags & 32 <> 0 then at.t + u.expiry else r.expires_at end,
        deadline = case when u.flags & 16 <> 0 then at.t + u.deadline else r.deadline end,
        memo_until = case when u.memo is not null then at.t + 86400 else r.memo_until end,
        token = case when u.flags & 64 <> 0 then r.token end,
        leased_until = case when u.flags & 64 <> 0 then coalesce($3, date_part('epoch', clock_timestamp())) + $18 else 0 end,
        flow = case when u.head is not null then @schema@.indexed(u.flow) else r.flow end,
        state = case when u.head is not null then @schema@.indexed(u.state) else r.state end,
        head = coalesce(u.head, r.head),
        data = case when u.data is null then r.data else r.data || u.data end
    from at, (
        select $4::text as namespace, u.*
        from unnest(
            $5::text::text[], $6::text::text[], $7::text::text[], $8::text::text[], $9::text::bigint[],
            $10::text::integer[], $11::text::text[], $12::text::text[], $13::text[], $14::jsonb[], $15::text[],
            $16::double precision[], $17::double precision[]
        ) with ordinality as u(
            key, token, write, base, weight, flags, flow, state, head, data, memo, deadline, expiry, at
        )
        -- The order in which all batches lock their rows: no two of them can wait for each other.
        order by u.key collate "C"
        -- All of them. The planner takes it for one: it must look up rows by their key, however few there are yet.
        limit $20
    ) u
    -- As in known_claims.sql.
    where r.namespace = any (array[u.namespace]) and r.key = any (array[u.key])
        and r.alive and (r.expires_at is null or r.expires_at > at.t)
        and r.token = u.token and r.leased_until > at.t and r.base = u.base and r.size + u.weight <= $19
        and case
            when r.large is null then true
            else not r.large ?| array(select jsonb_object_keys(u.data))
        end
    returning u.at, r.version, at.t, r.key, u.memo
), memos as (
    insert into @schema@.memos as m (namespace, key, body)
        select $4, d.key, d.memo from done d where d.memo is not null
        on conflict (namespace, key) do update set body = excluded.body
), noted as (
    update @schema@.lanes l
        set number = $2, used_at = clock_timestamp(), done = d.ats, done_versions = d.versions,
            codes = '{}', versions = '{}', writes = '{}', bases = '{}'
        from (select array_agg(d.at) as ats, array_agg(d.version) as versions from done d) d
        where l.id = $1 and d.ats is not null
)
select d.at, d.version, d.t,
    -- Some, but not all: the error takes back what was done.
    1 / case when (select count(*) from done) = $20 then 1 else 0 end
from done d
