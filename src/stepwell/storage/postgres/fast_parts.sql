-- Fast path for one write with parts: adds parts and sets small fields of an existing record, as run_batch does. If it
-- returns no row, nothing was written, and run_batch runs the write. If a part exists already, the statement fails, nothing
-- is written, and run_batch runs the write too. Writes with [checked] look for existing parts first. These fail only after a
-- wait for another write to the record, whose parts are not in the snapshot of this statement.
--
-- fast_parts.py composes the statement of a write: a line that begins with [option] is only for writes with this option,
-- and [no option] for those without it. Starting the execution takes most of the time, and it grows with each expression.
with lane as materialized (
    -- First, so that a repeated batch waits here while the first one still runs.
    select coalesce($time::double precision, date_part('epoch', clock_timestamp())) as t,
        case
            when current_setting('synchronous_commit') = 'off' then set_config('synchronous_commit', 'on', true)
        end as setting
    from @schema@.journal l where l.id = $lane and l.number < $number for update
), done as (
    update @schema@.records r set
        version = r.version + 1,
        write = $write,
        written_at = l.t,
        size = r.size + $size,
        parts_size = r.parts_size + $parts_size,
        [expiry] expires_at = l.t + $expiry,
        [expiry] removable_at = l.t + $expiry,
        [no expiry] removable_at = r.expires_at,
        [token] token = case when $keep then r.token end,
        [token] leased_until = case when $keep then l.t + $lease else 0 end,
        [fields] data = r.data || $fields::jsonb,
        has_parts = true
    from lane l
    where r.namespace = $namespace and r.key = $key
        and r.alive and (r.expires_at is null or r.expires_at > l.t)
        [token] and r.token = $token and r.leased_until > l.t
        [base] and r.base = $base
        [version] and r.version = $version and r.write = $version_write
        and r.size + $size <= $limit
        [fields] and case when r.large is null then true else not r.large ?| array(select jsonb_object_keys($fields)) end
        -- The size of a record with replaced parts takes longer to compute.
        [checked] and not exists (
        [checked]     select from @schema@.parts p where p.namespace = $namespace and p.key = $key and p.name @among@
        [checked] )
    returning r.version, l.t, r.base
), parts as (
    insert into @schema@.parts as p (namespace, key, name, weight, body)
        select $namespace, $key, n.name, octet_length(n.name) + octet_length(n.body), n.body
        [few] from done d, (values @parts@) n(name, body)
        [no few] from done d, unnest($names::text[], $bodies::text[]) n(name, body)
)
update @schema@.journal l
    set number = $number, used_at = clock_timestamp(), done = '{1}', done_versions = array[d.version],
        [base] bases = '{}',
        [no base] bases = array[d.base],
        codes = '{}', versions = '{}', writes = '{}'
    from done d where l.id = $lane
    returning d.version, d.t, d.base
