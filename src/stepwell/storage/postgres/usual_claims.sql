-- Claims of different addresses, as run_batch makes them, in one plain statement. Without a row nothing was claimed, and
-- the batch function finds out why; it is also asked where a row says that a memo was missed.
with lane as (
    -- First of all: the same claims, sent again while the first still run, wait here.
    update @schema@.lanes l set number = $2, used_at = clock_timestamp() where l.id = $1 and l.number < $2
        returning l.id
), at as materialized (
    -- A lost claim costs its holder a LeaseLost, never data: not worth waiting for the disk.
    select coalesce($3, date_part('epoch', clock_timestamp())) as t,
        set_config('synchronous_commit', 'off', true) as quick
    from lane
), seen as materialized (
    -- In the order in which all batches lock their rows.
    select $4::text as namespace, u.key, u.token, s.write, s.memo_until, s.leased_until
    from at, (
        select u.*
        from unnest($5::text::text[], $6::text::text[]) u(key, token)
        order by u.key collate "C"
        -- All of them. The planner takes it for one: it must look up rows by their key, however few there are yet.
        limit $8
    ) u
    left join lateral (
        select s.write, s.memo_until, s.leased_until
        from @schema@.records s where s.namespace = $4 and s.key = u.key
        offset 0
    ) s on true
), made as (
    -- First the rows that are not there, then those that are, as in the function: no two batches can wait for each other.
    insert into @schema@.records as r (namespace, key, token, leased_until)
        select s.namespace, s.key, s.token, at.t + $7 from at, seen s where s.write is null
        on conflict (namespace, key) do nothing
        returning r.*, false as missed
), held as (
    update @schema@.records r
        -- From the moment when it is ours, if we had to wait for somebody who changed it.
        set token = s.token, leased_until = coalesce($3, date_part('epoch', clock_timestamp())) + $7
        from at, seen s
        where (select count(*) from made) >= 0
            -- As in known_claims.sql.
            and r.namespace = any (array[s.namespace]) and r.key = any (array[s.key])
            and (r.token is null or r.leased_until <= at.t or r.token = s.token)
        returning r.*,
            -- A lock that its holder let go without a change was waited for: the lease counts from before.
            ($3 is null and r.leased_until < date_part('epoch', clock_timestamp()) + $7::double precision / 2)
            -- Whoever we waited for may have written a memo that this statement, begun before, does not see.
            or (r.memo_until > at.t and (r.write <> s.write or r.memo_until <> s.memo_until)) as missed
), claimed as (
    select * from made union all select * from held
)
select @claimed@,
    null::double precision as remaining,
    r.missed
from claimed r, at
union all
-- Somebody else has it: for how long yet, as far as we can see.
select s.key, at.t, null, null, null, null, null, null, null, null, null, null, null,
    greatest(s.leased_until - at.t, 0.001), false
from at, seen s
where (select count(*) from claimed) < $8
    and not exists (select from claimed c where c.key = s.key)
