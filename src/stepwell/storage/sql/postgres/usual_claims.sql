-- Claims of different addresses, as run_batch makes them, in one plain statement. Without a row nothing was claimed, and
-- the batch function finds out why; it is also asked where a row says that a memo was missed.
with lane as materialized (
    -- Locked first: the same claims, sent again while the first still run, wait here.
    select l.id from @schema@.lanes l where l.id = $1 and l.number < $2 for update
), at as materialized (
    -- A lost claim costs its holder a LeaseLost, never data: not worth waiting for the disk.
    select coalesce($3, date_part('epoch', clock_timestamp())) as t,
        set_config('synchronous_commit', 'off', true) as quick
    from lane
), made as (
    -- As all batches do: first the rows that are not there, then locks on those that are, both in order of their keys.
    -- No two batches can wait for each other then.
    insert into @schema@.records as r (namespace, key, token, leased_until)
        select $4, u.key, u.token, at.t + $7
        from at, unnest($5::text::text[], $6::text::text[]) u(key, token)
        left join lateral (
            select true as there from @schema@.records s where s.namespace = $4 and s.key = u.key offset 0
        ) s on true
        where s.there is null
        order by u.key collate "C"
        on conflict (namespace, key) do nothing
        returning r.*
), held as (
    update @schema@.records r
        -- Of the moment when it is ours, if we had to wait for it.
        set token = u.token, leased_until = coalesce($3, date_part('epoch', clock_timestamp())) + $7
        from at, (
            select $4::text as namespace, u.*
            from unnest($5::text::text[], $6::text::text[]) u(key, token)
            where (select count(*) from made) >= 0
            order by u.key collate "C"
            -- All of them. The planner takes it for one: it must look up rows by their key, however few there are yet.
            limit $8
        ) u
        where r.namespace = u.namespace and r.key = u.key
            and (r.token is null or r.leased_until <= at.t or r.token = u.token)
        returning r.*
), claimed as (
    select * from made union all select * from held
), noted as (
    update @schema@.lanes l set number = $2, used_at = clock_timestamp()
        from at where l.id = $1 and (select count(*) from claimed) >= 0
)
select r.key, at.t,
    -- Where nothing is to be seen, there still is the base to guard with.
    case when r.alive and (r.expires_at is null or r.expires_at > at.t) then r.version end as version,
    r.write, r.base, r.written_at, r.head, r.data, r.large, nullif(r.tags, '{}'), r.expires_at, r.deadline,
    case
        when r.memo_until > at.t then (
            select m.body from @schema@.memos m where m.namespace = r.namespace and m.key = r.key
        )
    end as memo,
    null::double precision as remaining,
    -- Whoever we waited for may have written a memo that this statement, begun before, does not see.
    r.memo_until > at.t and (
        select s.write = r.write and s.memo_until = r.memo_until
        from @schema@.records s where s.namespace = r.namespace and s.key = r.key
    ) is not true as missed
from claimed r, at
union all
-- Somebody else has it: for how long yet, as far as we can see.
select u.key, at.t, null, null, null, null, null, null, null, null, null, null, null,
    greatest(r.leased_until - at.t, 0.001), false
from at, unnest($5::text::text[]) u(key),
    -- Looked up one by one, whatever the planner thinks of the size of the table.
    lateral (select r.leased_until from @schema@.records r where r.namespace = $4 and r.key = u.key offset 0) r
where (select count(*) from claimed) < $8
    and not exists (select from claimed c where c.key = u.key)
