-- Divides the tables into partitions by a hash of the key, for hundreds of millions of records; 0 undoes that. Rows are copied, and
-- the tables are locked meanwhile. The tables keep their indexes, settings and grants, also those that were added later.
create function @schema@.partition(p_count integer) returns void
language plpgsql
-- A table of the schema that calls this is not in the search path.
set search_path = pg_catalog
as $$
declare
    v_schema constant text := '@schema@';
    v_table text;
    v_by text;
    v_oid oid;
    v_options text;
    v_indexes text[];
    v_grants text[];
    v_views text[];
    v_view text;
    v_sql text;
begin
    if p_count < 0 or p_count = 1 or p_count > 1024 then
        raise exception 'the number of partitions must be 0 or from 2 to 1024, not %', p_count;
    end if;
    -- Views and their grants are made again after their tables.
    v_views := array(
        select format('create view %s.%I as %s', v_schema, c.relname, pg_get_viewdef(c.oid))
        from pg_class c
        where c.relnamespace = v_schema::regnamespace and c.relname = 'states'
    ) || array(
        select format('grant %s on %s.%I to %s', g.privilege_type, v_schema, c.relname, g.grantee::regrole)
        from pg_class c, aclexplode(c.relacl) g
        where c.relnamespace = v_schema::regnamespace and c.relname = 'states' and g.grantee <> 0
    );
    execute format('drop view if exists %s.states', v_schema);

    foreach v_table in array array['records', 'memos', 'parts', 'tagged'] loop
        v_by := case when v_table = 'tagged' then 'hash' else 'key' end;
        v_oid := format('%s.%I', v_schema, v_table)::regclass;
        execute format('lock table %s.%I', v_schema, v_table);
        -- Of the table, or of its first partition.
        select coalesce(' with (' || array_to_string(c.reloptions, ', ') || ')', '') into v_options
            from pg_class c
            where c.relkind = 'r' and (c.oid = v_oid or c.oid in (select i.inhrelid from pg_inherits i where i.inhparent = v_oid))
            limit 1;
        v_indexes := array(
            select case
                when k.oid is null then pg_get_indexdef(x.indexrelid)
                else format('alter table %s.%I add constraint %I %s', v_schema, v_table, k.conname, pg_get_constraintdef(k.oid))
            end
            from pg_index x left join pg_constraint k on k.conindid = x.indexrelid and k.conrelid = v_oid
            where x.indrelid = v_oid
        );
        v_grants := array(
            select format('grant %s on %s.%I to %s', g.privilege_type, v_schema, v_table, g.grantee::regrole)
            from pg_class c, aclexplode(c.relacl) g where c.oid = v_oid and g.grantee <> 0
        );
        execute format('alter table %s.%I rename to %I', v_schema, v_table, v_table || '_before');
        execute format(
            'create table %s.%I (like %s.%I including defaults)%s', v_schema, v_table, v_schema, v_table || '_before',
            case when p_count > 0 then format(' partition by hash (%I)', v_by) else v_options end
        );
        for v_part in 0 .. p_count - 1 loop
            -- The number of partitions is in the name, because those of an earlier division still exist.
            execute format(
                'create table %s.%I partition of %s.%I for values with (modulus %s, remainder %s)%s',
                v_schema, format('%s_%s_%s', v_table, p_count, v_part), v_schema, v_table, p_count, v_part, v_options
            );
        end loop;
        execute format('insert into %s.%I select * from %s.%I', v_schema, v_table, v_schema, v_table || '_before');
        execute format('drop table %s.%I', v_schema, v_table || '_before');
        foreach v_sql in array v_indexes || v_grants loop
            -- The definition of an index of a partitioned table says "only".
            execute replace(v_sql, ' ON ONLY ', ' ON ');
        end loop;
    end loop;
    foreach v_view in array v_views loop
        execute v_view;
    end loop;
    -- Sessions that have run it know the types of the old tables.
    execute pg_get_functiondef(format('%s.run_batch', v_schema)::regproc);
end
$$;
