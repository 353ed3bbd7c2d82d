-- usual_claims.sql for addresses that have a row, as most do: nothing needs to be looked up before it is claimed. Fewer rows
-- than claims: some have none, or somebody else's lease, or these claims come late; usual_claims.sql tells which.
with lane as (
    -- First of all: the same claims, sent again while the first still run, wait here.
    update @schema@.lanes l set number = $2, used_at = clock_timestamp() where l.id = $1 and l.number < $2
        returning l.id
), at as materialized (
    -- A lost claim costs its holder a LeaseLost, never data: not worth waiting for the disk.
    select coalesce($3, date_part('epoch', clock_timestamp())) as t,
        set_config('synchronous_commit', 'off', true) as quick
    from lane
)
update @schema@.records r
    -- From the moment when it is ours, if we had to wait for somebody who changed it.
    set token = u.token, leased_until = coalesce($3, date_part('epoch', clock_timestamp())) + $7
    from at, (
        select $4::text as namespace, u.*
        from unnest($5::text::text[], $6::text::text[]) u(key, token)
        -- The order in which all batches lock their rows: no two of them can wait for each other.
        order by u.key collate "C"
        -- All of them. The planner takes it for one: it must look up rows by their key, however few there are yet.
        limit $8
    ) u
    -- So that nothing is left to do but to look each row up: with a plain equation the planner would go through the whole
    -- index if the table was nearly empty when it was last analyzed, and keep to that while it grows.
    where r.namespace = any (array[u.namespace]) and r.key = any (array[u.key])
        and (r.token is null or r.leased_until <= at.t or r.token = u.token)
    returning @claimed@,
        null::double precision as remaining,
        case
            -- A lock that its holder let go without a change was waited for: the lease counts from before.
            when $3 is null and r.leased_until < date_part('epoch', clock_timestamp()) + $7::double precision / 2 then true
            -- Whoever we waited for may have written a memo that this statement, begun before, does not see.
            when r.memo_until > at.t then (
                select s.write <> r.write or s.memo_until <> r.memo_until
                from @schema@.records s where s.namespace = r.namespace and s.key = r.key
            )
            else false
        end as missed
