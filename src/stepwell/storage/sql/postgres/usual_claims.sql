-- Claims of different addresses, as run_batch makes them, in one plain statement. No row at all: nothing was claimed,
-- and the batch function finds out why; it is also asked where the last column says that a memo was missed.
with lane as materialized (
    -- Locked first: the same claims, sent again while the first still run, wait here.
    select l.id from @schema@.lanes l where l.id = $1 and l.number < $2 for update
), at as materialized (
    -- A lost claim costs its holder a LeaseLost, never data: not worth waiting for the disk.
    select coalesce($3, date_part('epoch', clock_timestamp())) as t,
        set_config('synchronous_commit', 'off', true) as quick
), claimed as (
    insert into @schema@.records as r (namespace, key, token, leased_until)
        select $4, u.key, u.token, at.t + $7
        from lane, at, unnest($5::text::text[], $6::text::text[]) u(key, token)
        -- The order in which all batches lock their rows: no two of them can wait for each other.
        order by u.key collate "C"
        on conflict (namespace, key) do update set token = excluded.token, leased_until = excluded.leased_until
            where r.token is null or r.leased_until <= (select at.t from at) or r.token = excluded.token
        returning r.*
), noted as (
    update @schema@.lanes l set number = $2, used_at = clock_timestamp()
        where l.id = $1 and exists (select from claimed)
)
select r.token, at.t,
    -- Where nothing is to be seen, there still is the base to guard with.
    case when r.alive and (r.expires_at is null or r.expires_at > at.t) then r.version end,
    r.write, r.base, r.written_at, r.head, r.data, r.large, nullif(r.tags, '{}'), r.expires_at, r.deadline,
    case
        when r.memo_until > at.t then (
            select m.body from @schema@.memos m where m.namespace = r.namespace and m.key = r.key
        )
    end,
    null::double precision,
    -- Whoever we waited for may have written a memo that this statement, begun before, does not see.
    r.memo_until > at.t and (
        select s.write = r.write and s.memo_until = r.memo_until
        from @schema@.records s where s.namespace = r.namespace and s.key = r.key
    ) is not true
from claimed r, at
union all
-- Somebody else has it: for how long yet, as far as we can see.
select u.token, at.t, null, null, null, null, null, null, null, null, null, null, null,
    greatest(r.leased_until - at.t, 0.001), false
from lane, at, unnest($5::text::text[], $6::text::text[]) u(key, token),
    -- Looked up one by one, whatever the planner thinks of the size of the table.
    lateral (select r.leased_until from @schema@.records r where r.namespace = $4 and r.key = u.key offset 0) r
where (select count(*) from claimed) < cardinality($5::text::text[])
    and not exists (select from claimed c where c.key = u.key)
