-- Fast path for one write with new parts: adds them and merges small fields into an existing record, as run_batch does. If it
-- returns no row, nothing was written, and run_batch runs the write.
with lane as materialized (
    -- First, so that a repeated batch waits here while the first one still runs.
    select coalesce($3, date_part('epoch', clock_timestamp())) as t,
        case
            when current_setting('synchronous_commit') = 'off' then set_config('synchronous_commit', 'on', true)
        end as setting
    from @schema@.journal l where l.id = $1 and l.number < $2 for update
), done as (
    update @schema@.records r set
        version = r.version + 1,
        write = $6,
        written_at = l.t,
        size = r.size + $7,
        parts_size = r.parts_size + $8,
        expires_at = case when $10::float8 is null then r.expires_at else nullif(l.t + $10, 'infinity') end,
        removable_at = case when $10::float8 is null then r.expires_at else nullif(l.t + $10, 'infinity') end,
        token = case when $11::text is null or $12::float8 is not null then r.token end,
        leased_until = case when $11::text is null then r.leased_until else coalesce(l.t + $12, 0) end,
        data = case when $13::jsonb is null then r.data else r.data || $13 end,
        has_parts = true
    from lane l
    where r.namespace = $4 and r.key = $5
        and r.alive and (r.expires_at is null or r.expires_at > l.t)
        and ($11::text is null or r.token = $11 and r.leased_until > l.t)
        and ($14::text is null or r.base = $14)
        and ($15::bigint is null or r.version = $15 and r.write = $16)
        and r.size + $7 <= $9
        and case when $13::jsonb is null or r.large is null then true else not r.large ?| array(select jsonb_object_keys($13)) end
        and not exists (
            select from @schema@.parts p where p.namespace = $4 and p.key = $5 and p.name = any ($17::text[])
        )
        -- After a wait for a lock, the row is newer than the parts in the snapshot of this statement.
        and r.version = (select s.version from @schema@.records s where s.namespace = $4 and s.key = $5)
    returning r.version, l.t, r.base
), parts as (
    insert into @schema@.parts (namespace, key, name, weight, body)
        select $4, $5, n.name, octet_length(n.name) + octet_length(n.body), n.body
        from done, unnest($17, $18::text[]) n(name, body)
)
update @schema@.journal l
    set number = $2, used_at = clock_timestamp(), codes = null, versions = array[d.version], writes = null,
        bases = array[d.base]
    from done d where l.id = $1
    returning d.version, $6, d.base, d.t
