-- Fast path for one write with parts: adds parts and sets small fields of an existing record, as run_batch does. If it
-- returns no row, nothing was written, and run_batch runs the write.
with lane as materialized (
    -- First, so that a repeated batch waits here while the first one still runs.
    select coalesce($3::double precision, date_part('epoch', clock_timestamp())) as t,
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
        has_parts = true,
        expires_at = case when $9 then l.t + $10 else r.expires_at end,
        removable_at = case when $9 then l.t + $10 else r.expires_at end,
        token = case when $11::text is null or $12 then r.token end,
        leased_until = case when $11::text is null then r.leased_until when $12 then l.t + $13 else 0 end,
        data = case when $14::jsonb is null then r.data else r.data || $14 end
    from lane l
    where r.namespace = $4 and r.key = $5
        and r.alive and (r.expires_at is null or r.expires_at > l.t)
        and ($11::text is null or (r.token = $11 and r.leased_until > l.t))
        and ($17::text is null or r.base = $17)
        and ($18::bigint is null or (r.version = $18 and r.write = $19))
        and r.size + $7 <= $20
        and case when r.large is null then true else not r.large ?| array(select jsonb_object_keys($14)) end
        -- The size of a record with replaced parts takes longer to compute.
        and not exists (select from @schema@.parts p where p.namespace = $4 and p.key = $5 and p.name = any ($15))
        -- False after a wait for another write, whose parts are not in the snapshot of this statement.
        and r.version = (select s.version from @schema@.records s where s.namespace = $4 and s.key = $5)
    returning r.version, l.t, r.base
), parts as (
    insert into @schema@.parts as p (namespace, key, name, weight, body)
        select $4, $5, n.name, octet_length(n.name) + octet_length(n.body), n.body
        from done d, unnest($15::text[], $16::text[]) n(name, body)
), journal as (
    update @schema@.journal l
        set number = $2, used_at = clock_timestamp(), done = '{1}', done_versions = array[d.version],
            codes = '{}', versions = '{}', writes = '{}', bases = case when $17 is null then array[d.base] else '{}' end
        from done d where l.id = $1
)
select d.version, d.t, d.base from done d
