-- Runs a batch of operations in one round trip and one commit. The rules are those of stepwell/storage/reference.py.
--
-- One statement locks and reads the rows of all operations. The operations then change these rows one by one, in variables,
-- and a statement for each kind of change writes them. Parts, tags and long memos are written at once.
-- The client sorts the operations by namespace and key, so all batches lock rows in one order, which rules out deadlocks.
-- Each statement of a volatile function has its own snapshot, so the statements behind a lock see the record together with
-- its memo, tags and parts.

-- Returns some parts of a record: all if p_chosen is true, those with the names p_chosen -> 'names', or a range in its order (stepwell/record.py).
-- A stable function has the snapshot of the statement that calls it.
create function @schema@.parts_of(p_namespace text, p_key text, p_chosen jsonb)
    returns table (name text, weight bigint, body text)
language plpgsql stable
as $$
declare
    v_first constant text := p_chosen ->> 'first';
    v_last constant text := p_chosen ->> 'last';
    v_limit constant bigint := p_chosen ->> 'limit';
begin
    if p_chosen = 'true' then
        return query select p.name, p.weight, p.body from @schema@.parts p
            where p.namespace = p_namespace and p.key = p_key;
    elsif v_first is null then
        return query select p.name, p.weight, p.body from @schema@.parts p
            where p.namespace = p_namespace and p.key = p_key
                and p.name = any (array(select jsonb_array_elements_text(p_chosen -> 'names')));
    elsif (p_chosen ->> 'reverse')::boolean then
        if v_last is null then
            return query select p.name, p.weight, p.body from @schema@.parts p
                where p.namespace = p_namespace and p.key = p_key and p.name >= v_first
                order by p.name desc limit v_limit;
        else
            return query select p.name, p.weight, p.body from @schema@.parts p
                where p.namespace = p_namespace and p.key = p_key and p.name >= v_first and p.name <= v_last
                order by p.name desc limit v_limit;
        end if;
    elsif v_last is null then
        return query select p.name, p.weight, p.body from @schema@.parts p
            where p.namespace = p_namespace and p.key = p_key and p.name >= v_first
            order by p.name limit v_limit;
    else
        return query select p.name, p.weight, p.body from @schema@.parts p
            where p.namespace = p_namespace and p.key = p_key and p.name >= v_first and p.name <= v_last
            order by p.name limit v_limit;
    end if;
end
$$;

-- Removes a row that is no record, with its tags and its long memo.
create function @schema@.remove_row(p_namespace text, p_key text, p_tags text[], p_has_memo boolean) returns void
language plpgsql volatile
as $$
begin
    delete from @schema@.records where namespace = p_namespace and key = p_key;
    if p_tags <> '{}' then
        perform @schema@.untag(p_namespace, p_key, p_tags);
    end if;
    if p_has_memo then
        delete from @schema@.memos where namespace = p_namespace and key = p_key;
    end if;
end
$$;

-- Removes a record from the index of tags.
create function @schema@.untag(p_namespace text, p_key text, p_tags text[]) returns void
language plpgsql volatile
as $$
begin
    delete from @schema@.tagged
        where key = p_key
            and hash = any (array(select @schema@.tag_hash(p_namespace, u.tag) from unnest(p_tags) u(tag)));
end
$$;

-- An operation. The value of a column that it does not need is null.
create type @schema@.operation as (
    -- get, claim, renew, release, write, delete or forget
    kind text,
    token text,
    lease double precision,
    -- Of a get: the parts to read; true: all. Of a write: the parts to delete.
    chosen jsonb,

    -- Of a write, a delete or a forget.
    base text,
    version bigint,
    version_write text,
    absent boolean,
    wants_record boolean,
    write text,
    memo text,
    tags text[],

    -- Of a write.
    replace boolean,
    fresh boolean,
    allowed bigint,
    size bigint,
    parts_size bigint,
    flow text,
    state text,
    head text,
    data jsonb,
    large jsonb,
    unset text[],
    part_names text[],
    part_bodies text[],
    no_parts text[],
    -- infinity: none
    deadline double precision,
    expiry double precision,
    -- An empty text: none. Otherwise without its time.
    queue text
);

create type @schema@.lease as (namespace text, key text, token text, leased_until double precision);

-- The result of an operation. Its first columns are those of a record.
create type @schema@.result as (
    version bigint,
    write text,
    base text,
    written_at double precision,
    head text,
    data jsonb,
    large jsonb,
    tags text[],
    expires_at double precision,
    deadline double precision,
    queue text,
    memo text,
    code text,                      -- null: nothing
    clock double precision,
    amount double precision,        -- remaining seconds, or bytes
    part_names text[],
    part_bodies text[]
);

-- A transaction prepares each expression of the function once, which is most of the cost of a batch with one operation. So
-- there are few expressions on the way of a usual operation, and no variables with constants.
create function @schema@.run_batch(
    p_lane text,
    p_number bigint,
    p_now double precision,         -- null: the server's clock
    p_lock_timeout text,            -- null: the connection has our settings
    p_writes boolean,
    p_addresses jsonb               -- sorted, each with its operations
) returns setof @schema@.result
language plpgsql volatile
as $$
declare
    v_setting text;
    -- The last batch of the lane, and the results of this one.
    j record;
    v_repeated boolean;
    j_codes text[];
    j_versions bigint[];
    j_writes text[];
    j_bases text[];

    v_address jsonb;
    v_number integer := 0;
    op @schema@.operation;
    v_at integer := 0;
    -- The row of the address, and the time after it was locked.
    r @schema@.records%rowtype;
    t double precision;
    v_found boolean;
    v_held boolean;
    v_visible boolean;
    -- What has changed: 1 the lease, 2 more, 4 the fields, 8 the large fields.
    v_changed integer;

    v_code text;
    o @schema@.result;
    v_memo text;
    v_anew boolean;
    v_dropped boolean;
    v_names text[];
    v_size bigint;
    v_all bigint;
    -- The size of the parts that a write deletes or replaces.
    v_freed bigint;

    -- The rows to insert and to update, and the leases to update in other rows.
    v_inserted @schema@.records[];
    v_updated @schema@.records[];
    v_leases @schema@.lease[];
    v_count bigint;
begin
    if p_lock_timeout is not null then
        v_setting := set_config('lock_timeout', p_lock_timeout, true);
        -- Plans are kept while tables grow, so they must be index lookups from the beginning.
        v_setting := set_config('enable_seqscan', 'off', true);
        v_setting := set_config('enable_bitmapscan', 'off', true);
        v_setting := set_config('enable_hashjoin', 'off', true);
        v_setting := set_config('enable_mergejoin', 'off', true);
        v_setting := set_config('plan_cache_mode', 'force_generic_plan', true);
    end if;
    if current_setting('transaction_read_only') = 'on' then
        raise exception 'this server is read-only' using errcode = 'read_only_sql_transaction';
    end if;
    -- A crash may lose a claim: its holder then gets LeaseLost. So claims do not wait for the disk.
    if not p_writes or current_setting('synchronous_commit') = 'off' then
        v_setting := set_config('synchronous_commit', case when p_writes then 'on' else 'off' end, true);
    end if;

    -- The lane is locked first, so that a repeated batch waits here while the first one still runs.
    if p_lane is not null then
        if p_writes then
            loop
                select l.number, l.codes, l.versions, l.writes, l.bases into j
                    from @schema@.journal l where l.id = p_lane for update;
                exit when found;
                insert into @schema@.journal (id, number, used_at) values (p_lane, 0, clock_timestamp())
                    on conflict do nothing;
            end loop;
            v_found := j.number <= p_number;
            v_repeated := j.number = p_number;
        else
            -- A delayed batch that arrives after a newer one must not claim anything.
            update @schema@.journal set number = p_number, used_at = clock_timestamp()
                where id = p_lane and number < p_number;
            if not found then
                insert into @schema@.journal (id, number, used_at) values (p_lane, p_number, clock_timestamp())
                    on conflict do nothing;
                v_found := found;
            end if;
        end if;
        if v_found is false then
            raise exception 'batch % of this lane is outdated', p_number using errcode = 'SW001';
        end if;
    end if;

    for r in
        select l.*
        from jsonb_array_elements(p_addresses) with ordinality a(address, position)
        left join lateral (
            select *
            from @schema@.records
            where namespace = a.address ->> 'namespace' and key = a.address ->> 'key' and a.address -> 'locked' is not null
            for update
        ) l on true
        -- Without it, rows would be locked after the first ones were changed.
        order by a.position
    loop
        v_address := p_addresses -> v_number;
        v_number := v_number + 1;
        t := coalesce(p_now, date_part('epoch', clock_timestamp()));
        v_found := r.namespace is not null;
        if not v_found then
            r.namespace := v_address ->> 'namespace';
            r.key := v_address ->> 'key';
        end if;
        if not v_found and v_address -> 'locked' is not null then
            r.leased_until := 0;
            r.version := 0;
            r.written_at := 0;
            r.memo_until := 0;
            r.removable_at := 0;
            r.size := 0;
            r.alive := false;
            r.has_parts := false;
            r.write := '';
            r.base := '';
            r.tags := '{}';
            r.data := '{}';
            r.parts_size := 0;
        end if;
        v_changed := 0;

        for v_operation in 0 .. jsonb_array_length(v_address -> 'operations') - 1 loop
            op := jsonb_populate_record(null::@schema@.operation, v_address -> 'operations' -> v_operation);
            v_at := v_at + 1;
            v_held := r.token is not null and r.leased_until > t;
            v_visible := r.alive and (r.expires_at is null or r.expires_at > t);

            if op.kind = 'claim' or op.kind = 'renew' then
                if v_held and r.token = op.token or not v_held and op.kind = 'claim' then
                    r.token := op.token;
                    r.leased_until := t + op.lease;
                    v_changed := v_changed | 1;
                    if r.memo_until > t and r.memo is null then
                        select body into v_memo from @schema@.memos where namespace = r.namespace and key = r.key;
                    end if;
                    -- The base of a record that is not visible is needed as a guard.
                    return next (
                        case when v_visible then r.version end, r.write, r.base, r.written_at, r.head, r.data, r.large,
                        r.tags, r.expires_at, r.deadline, r.queue,
                        case when r.memo_until > t then coalesce(r.memo, v_memo) end, 'claimed', t, null, null, null
                    )::@schema@.result;
                else
                    o := null;
                    o.code := case when op.kind = 'claim' then 'taken' else 'lease lost' end;
                    o.amount := r.leased_until - t;
                    return next o;
                end if;

            elsif op.kind = 'release' then
                if r.token = op.token then
                    r.token := null;
                    r.leased_until := 0;
                    v_changed := v_changed | 1;
                end if;
                return next null;

            elsif op.kind = 'get' and v_address -> 'locked' is null then
                -- One statement has one snapshot, so the parts belong to this version.
                if op.chosen is null then
                    return query
                        select version, write, base, written_at, head, data, large, tags, expires_at, deadline, queue,
                            null::text, 'record', t, null::double precision, null::text[], null::text[]
                        from @schema@.records
                        where namespace = r.namespace and key = r.key
                            and alive and (expires_at is null or expires_at > t);
                else
                    return query
                        select version, write, base, written_at, head, data, large, tags, expires_at, deadline, queue,
                            null::text, 'record', t, null::double precision, p.names, p.bodies
                        from @schema@.records r_
                        cross join lateral (
                            select array_agg(p_.name) as names, array_agg(p_.body) as bodies
                            from @schema@.parts_of(r_.namespace, r_.key, op.chosen) p_
                        ) p
                        where namespace = r.namespace and key = r.key
                            and alive and (expires_at is null or expires_at > t);
                end if;
                if not found then
                    return next null;
                end if;

            elsif op.kind = 'get' then
                o := null;
                if v_visible then
                    select array_agg(name), array_agg(body) into o.part_names, o.part_bodies
                        from @schema@.parts_of(r.namespace, r.key, op.chosen);
                    o := (
                        r.version, r.write, r.base, r.written_at, r.head, r.data, r.large, r.tags, r.expires_at, r.deadline,
                        r.queue, null, 'record', t, null, o.part_names, o.part_bodies
                    );
                end if;
                return next o;

            elsif v_repeated then
                -- A record may be newer than the result, but it is complete.
                v_visible := r.alive and op.wants_record;
                return next (
                    case when v_visible then r.version else j.versions[v_at] end,
                    case when v_visible then r.write else coalesce(j.writes[v_at], op.write) end,
                    case when v_visible then r.base else coalesce(j.bases[v_at], op.base) end,
                    case when v_visible then r.written_at end,
                    r.head, r.data, r.large, r.tags, r.expires_at, r.deadline, r.queue, null,
                    coalesce(j.codes[v_at], 'applied'), t, j.versions[v_at], null, null
                )::@schema@.result;

            else
                v_code := case
                    when op.token is not null and (not v_held or r.token <> op.token) then 'lease lost'
                    when op.base <> r.base then 'replaced'
                    when op.version is not null and (
                        not v_visible or r.version <> op.version or r.write <> op.version_write
                    ) then 'changed'
                    when op.absent and v_visible then 'exists'
                    else 'applied'
                end;
                v_size := null;

                if v_code = 'applied' and op.kind = 'write' then
                    -- An expired record is only hidden: a write of its holder restores it, any other write replaces it.
                    v_anew := r.alive and not v_visible and (op.fresh or op.token is null) is true;
                    v_dropped := v_anew or op.replace is true;
                    v_freed := 0;
                    if r.has_parts and v_dropped then
                        v_freed := r.parts_size;
                    elsif r.has_parts and (op.part_names is not null or op.no_parts is not null or op.chosen is not null) then
                        v_names := coalesce(op.part_names || op.no_parts, '{}');
                        select coalesce(sum(weight), 0) into v_freed
                            from @schema@.parts where namespace = r.namespace and key = r.key and name = any (v_names);
                        if op.chosen is not null then
                            select v_freed + coalesce(sum(p.weight), 0) into v_freed
                                from @schema@.parts_of(r.namespace, r.key, op.chosen) p where p.name <> all (v_names);
                        end if;
                    end if;
                    v_names := null;
                    if op.large is not null or op.unset is not null or r.large is not null then
                        v_names := array(
                            select jsonb_object_keys(op.data) union all select jsonb_object_keys(op.large)
                        ) || op.unset;
                    end if;
                    v_size := op.size + case when v_dropped then 0 else r.size - v_freed end;
                    if v_size > op.allowed then
                        -- The upper bound exceeds the limit: compute the exact size.
                        v_names := coalesce(v_names, array(select jsonb_object_keys(op.data)));
                        select r.parts_size + coalesce(sum(f.weight), 0),
                                op.size + case when v_dropped then 0 else r.parts_size - v_freed end
                                    + coalesce(sum(f.weight) filter (where not v_dropped and f.key <> all (v_names)), 0)
                            into v_all, v_size
                            from (
                                select n.key, octet_length(n.key) + octet_length(n.value) as weight
                                from jsonb_each_text(r.data || coalesce(r.large, '{}')) n
                            ) f;
                        if v_size > op.allowed and v_size > v_all then
                            v_code := 'too large';
                        end if;
                    end if;
                end if;

                if v_code = 'applied' then
                    v_changed := v_changed | 2;
                    if op.token is not null then
                        r.token := case when op.lease is not null then op.token end;
                        r.leased_until := coalesce(t + op.lease, 0);
                    end if;
                    if op.memo is not null and op.kind <> 'forget' then
                        if @schema@.short(op.memo) is null then
                            insert into @schema@.memos (namespace, key, body) values (r.namespace, r.key, op.memo)
                                on conflict (namespace, key) do update set body = excluded.body;
                        elsif r.memo is null and r.memo_until > 0 then
                            delete from @schema@.memos where namespace = r.namespace and key = r.key;
                        end if;
                        r.memo := @schema@.short(op.memo);
                        r.memo_until := t + 86400;
                    end if;

                    if op.kind <> 'write' then
                        if r.has_parts then
                            delete from @schema@.parts where namespace = r.namespace and key = r.key;
                        end if;
                        if op.kind = 'forget' then
                            -- The given tags too, in case the stored ones are damaged.
                            perform @schema@.untag(r.namespace, r.key, op.tags || r.tags);
                            delete from @schema@.memos where namespace = r.namespace and key = r.key;
                            r.memo := null;
                            r.memo_until := 0;
                            -- Otherwise the tags stay, so that the tombstone is found by them and can be forgotten too.
                            r.tags := '{}';
                            r.version := 0;
                            r.write := '';
                            -- The new base makes the write of another holder fail.
                            r.base := case when v_held and op.token is null then op.write else '' end;
                        elsif r.alive then
                            r.version := r.version + 1;
                            r.write := op.write;
                            r.base := op.write;
                            r.written_at := t;
                        end if;
                        -- The end of the memo or of the tombstone.
                        r.removable_at := greatest(
                            r.memo_until, case when r.version = 0 then 0 else r.written_at + 86400 end
                        );
                        r.alive := false;
                        r.has_parts := false;
                        r.size := 0;
                        r.parts_size := 0;
                        r.expires_at := null;
                        r.deadline := null;
                        r.queue := null;
                        r.flow := null;
                        r.state := null;
                        r.head := null;
                        r.data := '{}';
                        r.large := null;
                        v_changed := v_changed | 12;

                    else
                        if v_dropped and r.has_parts then
                            delete from @schema@.parts where namespace = r.namespace and key = r.key;
                        elsif r.has_parts and (op.no_parts is not null or op.chosen is not null) then
                            delete from @schema@.parts
                                where namespace = r.namespace and key = r.key
                                    -- With a join, the planner may read all parts of the record.
                                    and name = any (op.no_parts || array(
                                        select p.name from @schema@.parts_of(r.namespace, r.key, op.chosen) p
                                    ));
                        end if;
                        if op.part_names is not null then
                            insert into @schema@.parts (namespace, key, name, weight, body)
                                select r.namespace, r.key, n.name, octet_length(n.name) + octet_length(n.body), n.body
                                from unnest(op.part_names, op.part_bodies) n(name, body)
                                on conflict (namespace, key, name)
                                    do update set weight = excluded.weight, body = excluded.body;
                        end if;
                        if r.has_parts or op.part_names is not null then
                            r.has_parts := not v_dropped or op.part_names is not null;
                            r.parts_size := r.parts_size - v_freed + coalesce(op.parts_size, 0);
                        end if;
                        if v_anew or op.tags is not null then
                            op.tags := coalesce(op.tags, '{}');
                            if op.tags <> r.tags then
                                perform @schema@.untag(r.namespace, r.key, r.tags);
                                insert into @schema@.tagged (hash, key)
                                    select distinct @schema@.tag_hash(r.namespace, u.tag), r.key from unnest(op.tags) u(tag)
                                    on conflict do nothing;
                                r.tags := op.tags;
                            end if;
                        end if;
                        if v_anew then
                            r.flow := null;
                            r.state := null;
                            r.head := null;
                            r.deadline := null;
                            r.queue := null;
                        end if;
                        if op.head is not null then
                            r.flow := @schema@.indexed(op.flow);
                            r.state := @schema@.indexed(op.state);
                            r.head := op.head;
                        end if;
                        if op.deadline is not null then
                            r.deadline := nullif(t + op.deadline, 'infinity');
                        end if;
                        if op.queue is not null then
                            r.queue := nullif(op.queue, '') || lpad(to_hex(trunc(t * 1e6)::bigint), 14, '0');
                        end if;
                        if op.expiry is not null or not v_visible then
                            r.expires_at := nullif(t + op.expiry, 'infinity');
                        end if;
                        r.removable_at := r.expires_at;
                        if v_dropped then
                            r.base := op.write;
                            r.data := coalesce(op.data, '{}');
                            r.large := op.large;
                            v_changed := v_changed | 12;
                        elsif v_names is not null then
                            r.data := (r.data - v_names) || coalesce(op.data, '{}');
                            v_changed := v_changed | 4;
                            if op.large is not null or r.large ?| v_names then
                                r.large := nullif((coalesce(r.large, '{}') - v_names) || coalesce(op.large, '{}'), '{}');
                                v_changed := v_changed | 8;
                            end if;
                        elsif op.data is not null then
                            r.data := r.data || op.data;
                            v_changed := v_changed | 4;
                        end if;
                        r.size := v_size;
                        r.version := case
                            when r.alive then r.version + 1
                            else greatest(r.version + 1, trunc(t * 1e6)::bigint)
                        end;
                        r.alive := true;
                        r.write := op.write;
                        r.written_at := t;
                    end if;
                end if;

                if p_lane is not null then
                    j_versions[v_at] := case when v_code = 'applied' then r.version else v_size end;
                    if v_code <> 'applied' then
                        j_codes[v_at] := v_code;
                    elsif r.write <> op.write then
                        j_writes[v_at] := r.write;
                    end if;
                    if r.base <> op.base is not false then
                        j_bases[v_at] := r.base;
                    end if;
                end if;
                if v_code <> 'applied' then
                    o := null;
                    o.code := v_code;
                    o.amount := v_size;
                    return next o;
                elsif op.wants_record and r.alive then
                    return next (
                        r.version, r.write, r.base, r.written_at, r.head, r.data, r.large, r.tags, r.expires_at, r.deadline,
                        r.queue, null, v_code, t, null, null, null
                    )::@schema@.result;
                else
                    return next (
                        r.version, r.write, r.base, null, null, null, null, null, null, null, null, null, v_code, t, null,
                        null, null
                    )::@schema@.result;
                end if;
            end if;
        end loop;

        if not r.alive and r.removable_at <= t and (r.token is null or r.leased_until <= t) then
            if v_found then
                perform @schema@.remove_row(r.namespace, r.key, r.tags, r.memo_until > 0);
            end if;
        elsif not v_found then
            if v_changed > 0 then
                v_inserted := v_inserted || r;
            end if;
        elsif v_changed = 1 then
            v_leases := v_leases || (r.namespace, r.key, r.token, r.leased_until)::@schema@.lease;
        elsif v_changed > 1 then
            -- What has not changed is not written again: null, or no large fields as an empty object.
            if v_changed & 4 = 0 then
                r.data := null;
            end if;
            r.large := case when v_changed & 8 > 0 then coalesce(r.large, '{}') end;
            v_updated := v_updated || r;
        end if;
    end loop;

    if v_inserted is not null then
        insert into @schema@.records select u.* from unnest(v_inserted) u on conflict do nothing;
        get diagnostics v_count = row_count;
        if v_count < cardinality(v_inserted) then
            -- To lock it now would break the order of locks.
            raise exception 'a row was inserted meanwhile' using errcode = 'serialization_failure';
        end if;
    end if;
    if v_leases is not null then
        update @schema@.records r_ set token = u.token, leased_until = u.leased_until
            from unnest(v_leases) u
            -- any (array[...]) allows only index lookups by key. With plain equality, a plan made while the table was
            -- nearly empty would scan the whole index, and the server would keep that plan while the table grows.
            where r_.namespace = any (array[u.namespace]) and r_.key = any (array[u.key]);
    end if;
    if v_updated is not null then
        update @schema@.records r_ set
            leased_until = u.leased_until,
            version = u.version,
            written_at = u.written_at,
            memo_until = u.memo_until,
            expires_at = u.expires_at,
            deadline = u.deadline,
            removable_at = u.removable_at,
            size = u.size,
            alive = u.alive,
            has_parts = u.has_parts,
            token = u.token,
            write = u.write,
            base = u.base,
            flow = u.flow,
            state = u.state,
            head = u.head,
            tags = u.tags,
            data = coalesce(u.data, r_.data),
            large = case when u.large is null then r_.large when u.large <> '{}' then u.large end,
            queue = u.queue,
            parts_size = u.parts_size,
            memo = u.memo
            from unnest(v_updated) u
            where r_.namespace = any (array[u.namespace]) and r_.key = any (array[u.key]);
    end if;

    if p_writes and p_lane is not null and v_repeated is not true then
        update @schema@.journal
            set number = p_number, used_at = clock_timestamp(), codes = j_codes, versions = j_versions,
                writes = j_writes, bases = j_bases
            where id = p_lane;
    end if;
end
$$;
