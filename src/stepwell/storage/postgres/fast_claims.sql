-- Fast path for claims: claims records that have a row, as run_batch does. Returns fewer rows than claims if an
-- address has no row or is leased to another token, or if the batch is outdated; then run_batch runs the batch.
with lane as (
    -- First, so that a repeated batch waits here while the first one still runs.
    update @schema@.journal l set number = $2, used_at = clock_timestamp() where l.id = $1 and l.number < $2
        returning l.id
), at as materialized (
    -- A crash may lose a claim: its holder then gets LeaseLost. So claims do not wait for the disk.
    select coalesce($3, date_part('epoch', clock_timestamp())) as t,
        set_config('synchronous_commit', 'off', true) as setting
    from lane
)
update @schema@.records r
    -- The lease starts now, which is after any wait for a row that another transaction changed.
    set token = u.token, leased_until = coalesce($3, date_part('epoch', clock_timestamp())) + $7
    from at, (
        select $4::text as namespace, u.*
        from unnest($5::text::text[], $6::text::text[]) u(key, token)
        -- All batches lock rows in this order, which rules out deadlocks.
        order by u.key collate "C"
        -- Keeps all of them, but the planner expects one row and so chooses index lookups by key.
        limit $8
    ) u
    -- any (array[...]) allows only index lookups by key. With plain equality, a plan made while the table was nearly
    -- empty would scan the whole index, and the server would keep that plan while the table grows.
    where r.namespace = any (array[u.namespace]) and r.key = any (array[u.key])
        and (r.token is null or r.leased_until <= at.t or r.token = u.token)
    -- fast_path.py reads these columns by position.
    returning r.key, at.t,
        -- An expired record is not visible, but its base is still needed as a guard.
        case when r.alive and (r.expires_at is null or r.expires_at > at.t) then r.version end as version,
        r.write, r.base, r.written_at, r.head, r.data, r.large, nullif(r.tags, '{}'), r.expires_at, r.deadline, r.queue,
        case
            when r.memo_until <= at.t then null
            when r.memo is not null then r.memo
            else (select m.body from @schema@.memos m where m.namespace = r.namespace and m.key = r.key)
        end as memo,
        -- True: the statement waited for a lock, and run_batch must repeat the claim.
        case
            -- The lock was released without a change, so leased_until was computed before the wait.
            when $3 is null and r.leased_until < date_part('epoch', clock_timestamp()) + $7::double precision / 2 then true
            -- The other transaction may have written a long memo that is not in the snapshot of this statement.
            when r.memo_until > at.t and r.memo is null then (
                select s.write <> r.write or s.memo_until <> r.memo_until
                from @schema@.records s where s.namespace = r.namespace and s.key = r.key
            )
            else false
        end as stale
