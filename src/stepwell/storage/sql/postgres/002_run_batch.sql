-- One batch of operations: one round trip, one commit. What each operation does is defined by
-- stepwell/storage/cell.py; this is the same, under row locks.
--
-- All batches lock rows in (namespace, key) order, so no two can wait for each other. Every statement that
-- reads what belongs to a record comes after the one that locked its row: an earlier snapshot would show
-- the new record with old belongings.

create function @schema@.run_batch(
    p_lane text,
    p_number bigint,
    p_now double precision,         -- null: the server's clock
    p_lock_timeout text,            -- null: the connection's own
    p_kinds smallint[],             -- 1 get, 2 claim, 3 apply, 4 release
    p_namespaces text[],
    p_keys text[],
    p_flags integer[],
    p_tokens text[],
    p_leases double precision[],
    p_writes text[],
    p_bases text[],
    p_versions bigint[],
    p_version_writes text[],
    p_flows text[],
    p_states text[],
    p_heads text[],
    p_data jsonb[],
    p_large jsonb[],
    p_unset jsonb[],
    p_tags jsonb[],
    p_deadlines double precision[],
    p_expiries double precision[],
    p_memos text[],
    p_parts jsonb[],
    p_weights bigint[],
    p_limits bigint[]
) returns table (
    at bigint,
    code smallint,                  -- 0 nothing, 1 record, 2 claimed, 3 taken, 4 applied, 5.. see below
    clock double precision,
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
    memo text,
    amount double precision,        -- seconds left, or bytes
    part_names text[],
    part_bodies text[]
)
language plpgsql volatile
as $$
declare
    c_day constant double precision := 86400;
    c_nothing constant smallint := 0;
    c_record constant smallint := 1;
    c_claimed constant smallint := 2;
    c_taken constant smallint := 3;
    c_applied constant smallint := 4;
    c_lease_lost constant smallint := 5;
    c_replaced constant smallint := 6;
    c_changed constant smallint := 7;
    c_too_large constant smallint := 8;
    f_replace constant integer := 1;
    f_delete constant integer := 2;
    f_forget constant integer := 4;
    f_fresh constant integer := 8;
    f_deadline constant integer := 16;
    f_expiry constant integer := 32;
    f_keep constant integer := 64;
    f_returning constant integer := 128;
    f_renew constant integer := 256;
    f_parts constant integer := 512;
    f_usual constant integer := 1024;

    op record;
    r record;
    t double precision;
    v_setting text;
    v_there boolean;
    v_alive boolean;
    v_held boolean;
    v_anew boolean;
    v_dropped boolean;
    v_keep boolean;
    v_returning boolean;
    v_memo_until double precision;
    v_expires double precision;
    v_names text[];
    v_tags text[];
    v_size bigint;
    v_all bigint;
    v_base text;
    v_number bigint;

    v_journal boolean := false;
    v_again boolean := false;
    j record;
    j_codes smallint[] := '{}';
    j_versions bigint[] := '{}';
    j_writes text[] := '{}';
    j_bases text[] := '{}';
begin
    if current_setting('transaction_read_only') = 'on' then
        raise exception 'this server is read-only' using errcode = 'read_only_sql_transaction';
    end if;

    if p_lock_timeout is not null then
        v_setting := set_config('lock_timeout', p_lock_timeout, true);
    end if;

    if 3 = any (p_kinds) then
        if current_setting('synchronous_commit') = 'off' then
            v_setting := set_config('synchronous_commit', 'on', true);
        end if;
        if p_lane is not null then
            -- Locked before anything else: the same batch, sent again while the first one still runs, waits here.
            v_journal := true;
            loop
                select l.number, l.codes, l.versions, l.writes, l.bases into j
                    from @schema@.lanes l where l.id = p_lane for update;
                exit when found;
                insert into @schema@.lanes (id, number, used_at) values (p_lane, 0, clock_timestamp())
                    on conflict do nothing;
            end loop;
            if j.number > p_number then
                raise exception 'batch % of this lane is over', p_number using errcode = 'SW001';
            end if;
            v_again := j.number = p_number;
        end if;
    else
        -- A lost claim costs its holder a LeaseLost, never data: not worth waiting for the disk.
        v_setting := set_config('synchronous_commit', 'off', true);
        if p_lane is not null then
            -- A batch that was cut off and arrives after it was sent again must not claim anything.
            update @schema@.lanes l set number = p_number, used_at = clock_timestamp()
                where l.id = p_lane and l.number < p_number;
            if not found then
                insert into @schema@.lanes (id, number, used_at) values (p_lane, p_number, clock_timestamp())
                    on conflict do nothing;
                if not found then
                    raise exception 'batch % of this lane is over', p_number using errcode = 'SW001';
                end if;
            end if;
        end if;
    end if;

    for op in
        select *
        from unnest(
            p_kinds, p_namespaces, p_keys, p_flags, p_tokens, p_leases, p_writes, p_bases, p_versions,
            p_version_writes, p_flows, p_states, p_heads, p_data, p_large, p_unset, p_tags, p_deadlines,
            p_expiries, p_memos, p_parts, p_weights, p_limits
        ) with ordinality as u(
            kind, namespace, key, flags, token, lease, write, base, version,
            version_write, flow, state, head, data, large, unset, tags, deadline,
            expiry, memo, parts, weight, allowed, at
        )
        order by u.namespace collate "C", u.key collate "C", u.at
    loop
        t := coalesce(p_now, date_part('epoch', clock_timestamp()));
        at := op.at;
        code := c_nothing;
        clock := t;
        version := null;
        write := null;
        base := null;
        written_at := null;
        head := null;
        data := null;
        large := null;
        tags := null;
        expires_at := null;
        deadline := null;
        memo := null;
        amount := null;
        part_names := null;
        part_bodies := null;

        if op.kind = 1 then
            if op.flags & f_parts = 0 then
                select r_.version, r_.write, r_.base, r_.written_at, r_.head, r_.data, r_.large, r_.tags,
                        r_.expires_at, r_.deadline, r_.alive
                    into version, write, base, written_at, head, data, large, tags, expires_at, deadline, v_alive
                    from @schema@.records r_
                    where r_.namespace = op.namespace and r_.key = op.key;
                v_there := found;
            else
                -- One statement, one snapshot: the parts are those of this version.
                select r_.version, r_.write, r_.base, r_.written_at, r_.head, r_.data, r_.large, r_.tags,
                        r_.expires_at, r_.deadline, r_.alive, p.names, p.bodies
                    into version, write, base, written_at, head, data, large, tags, expires_at, deadline, v_alive,
                        part_names, part_bodies
                    from @schema@.records r_
                    cross join lateral (
                        select array_agg(p_.name) as names, array_agg(p_.body) as bodies
                        from @schema@.parts p_
                        where p_.namespace = r_.namespace and p_.key = r_.key
                    ) p
                    where r_.namespace = op.namespace and r_.key = op.key;
                v_there := found;
            end if;
            if v_there and v_alive then
                if expires_at is null or expires_at > t then
                    code := c_record;
                else
                    data := null;
                    large := null;
                    part_bodies := null;
                end if;
            end if;
            v_alive := v_alive or not v_there;

        elsif op.kind = 2 then
            loop
                update @schema@.records r_
                    set token = op.token, leased_until = t + op.lease
                    where r_.namespace = op.namespace and r_.key = op.key
                        and case
                            when op.flags & f_renew <> 0 then r_.token = op.token and r_.leased_until > t
                            else r_.token is null or r_.leased_until <= t or r_.token = op.token
                        end
                    returning r_.version, r_.write, r_.base, r_.written_at, r_.head, r_.data, r_.large, r_.tags,
                        r_.expires_at, r_.deadline, r_.alive, r_.memo_until
                    into version, write, base, written_at, head, data, large, tags, expires_at, deadline,
                        v_alive, v_memo_until;
                if found then
                    code := c_claimed;
                    if not v_alive or expires_at <= t then
                        -- Nothing to be seen, but the base to guard with.
                        version := null;
                        data := null;
                        large := null;
                    end if;
                    if v_memo_until > t then
                        select m.body into memo from @schema@.memos m
                            where m.namespace = op.namespace and m.key = op.key;
                    end if;
                    exit;
                end if;
                if op.flags & f_renew <> 0 then
                    code := c_lease_lost;
                    v_alive := false;
                    exit;
                end if;
                select r_.token, r_.leased_until into r from @schema@.records r_
                    where r_.namespace = op.namespace and r_.key = op.key;
                if not found then
                    insert into @schema@.records (namespace, key, token, leased_until)
                        values (op.namespace, op.key, op.token, t + op.lease)
                        on conflict do nothing;
                    if found then
                        code := c_claimed;
                        base := '';
                        exit;
                    end if;
                elsif r.token <> op.token and r.leased_until > t then
                    code := c_taken;
                    amount := r.leased_until - t;
                    exit;
                end if;
                -- Somebody let go, or came first, between our statements: look again.
            end loop;
            v_alive := v_alive or code <> c_lease_lost;

        elsif op.kind = 4 then
            update @schema@.records r_ set token = null, leased_until = 0
                where r_.namespace = op.namespace and r_.key = op.key and r_.token = op.token
                returning r_.alive into v_alive;
            v_alive := found and v_alive;

        elsif v_again then
            code := j.codes[op.at];
            version := j.versions[op.at];
            v_alive := true;
            if code = c_applied then
                write := coalesce(j.writes[op.at], op.write);
                base := coalesce(j.bases[op.at], op.base, op.write);
                if op.flags & f_returning <> 0 then
                    select r_.version, r_.write, r_.base, r_.written_at, r_.head, r_.data, r_.large, r_.tags,
                            r_.expires_at, r_.deadline
                        into r
                        from @schema@.records r_
                        where r_.namespace = op.namespace and r_.key = op.key and r_.alive;
                    if found then
                        -- Others may have written since: the record then is a later one, but whole.
                        version := r.version;
                        write := r.write;
                        base := r.base;
                        written_at := r.written_at;
                        head := r.head;
                        data := r.data;
                        large := r.large;
                        tags := r.tags;
                        expires_at := r.expires_at;
                        deadline := r.deadline;
                    end if;
                end if;
            elsif code = c_too_large then
                amount := version;
                version := null;
            end if;

        else
            v_held := op.token is not null;
            v_keep := op.flags & f_keep <> 0;
            v_returning := op.flags & f_returning <> 0;
            loop
                if op.flags & f_usual <> 0 then
                    -- What nearly every write is: a holder changes small fields of a record that is there. One
                    -- statement; whatever is not as expected is left to the general way below.
                    update @schema@.records r_ set
                        version = r_.version + 1,
                        write = op.write,
                        written_at = t,
                        size = r_.size + op.weight,
                        expires_at = case when op.flags & f_expiry <> 0 then t + op.expiry else r_.expires_at end,
                        removable_at = case when op.flags & f_expiry <> 0 then t + op.expiry else r_.expires_at end,
                        deadline = case when op.flags & f_deadline <> 0 then t + op.deadline else r_.deadline end,
                        memo_until = case when op.memo is not null then t + c_day else r_.memo_until end,
                        token = case when v_keep then r_.token end,
                        leased_until = case when v_keep then t + op.lease else 0 end,
                        flow = case when op.head is not null then @schema@.indexed(op.flow) else r_.flow end,
                        state = case when op.head is not null then @schema@.indexed(op.state) else r_.state end,
                        head = coalesce(op.head, r_.head),
                        data = case when op.data is null then r_.data else r_.data || op.data end
                        where r_.namespace = op.namespace and r_.key = op.key
                            and r_.alive and (r_.expires_at is null or r_.expires_at > t)
                            and r_.token = op.token and r_.leased_until > t and r_.base = op.base
                            and r_.large is null and r_.size + op.weight <= op.allowed
                        returning r_.version into version;
                    if found then
                        write := op.write;
                        base := op.base;
                        v_alive := true;
                        code := c_applied;
                        if op.memo is not null then
                            insert into @schema@.memos as m (namespace, key, body)
                                values (op.namespace, op.key, op.memo)
                                on conflict (namespace, key) do update set body = excluded.body;
                        end if;
                        exit;
                    end if;
                end if;

                select r_.version, r_.write, r_.base, r_.alive, r_.expires_at, r_.token, r_.leased_until, r_.size,
                        r_.memo_until, r_.tags, r_.has_parts, r_.large is not null as has_large
                    into r
                    from @schema@.records r_
                    where r_.namespace = op.namespace and r_.key = op.key
                    for update;
                v_there := found;
                if p_now is null then
                    -- Waiting for the row took time.
                    t := date_part('epoch', clock_timestamp());
                    clock := t;
                end if;
                v_alive := v_there and r.alive;

                if v_held and (not v_there or r.token is distinct from op.token or r.leased_until <= t) then
                    code := c_lease_lost;
                    exit;
                end if;
                if op.base <> coalesce(r.base, '') then
                    code := c_replaced;
                    exit;
                end if;
                if op.version is not null and (
                    not v_alive or r.expires_at <= t or r.version <> op.version or r.write <> op.version_write
                ) then
                    code := c_changed;
                    exit;
                end if;

                if op.flags & f_delete <> 0 then
                    if not v_there and op.memo is null then
                        code := c_applied;
                        version := 0;
                        write := '';
                        base := '';
                        exit;
                    end if;
                    if not v_there then
                        insert into @schema@.records (namespace, key, memo_until)
                            values (op.namespace, op.key, t)
                            on conflict do nothing;
                        continue;
                    end if;
                    if v_alive then
                        if r.has_parts then
                            delete from @schema@.parts p
                                where p.namespace = op.namespace and p.key = op.key;
                        end if;
                        if r.tags <> '{}' then
                            delete from @schema@.tags g
                                where g.namespace = op.namespace and g.key = op.key
                                    and g.tag in (select @schema@.indexed(x.tag) from unnest(r.tags) x(tag));
                        end if;
                        version := r.version + 1;
                        write := op.write;
                        base := op.write;
                    else
                        version := r.version;
                        write := r.write;
                        base := r.base;
                    end if;
                    if op.flags & f_forget <> 0 then
                        version := 0;
                        write := '';
                        base := '';
                        delete from @schema@.memos m where m.namespace = op.namespace and m.key = op.key;
                    end if;
                    v_memo_until := case
                        when op.flags & f_forget <> 0 then 0
                        when op.memo is not null then t + c_day
                        else r.memo_until
                    end;
                    update @schema@.records r_ set
                        version = run_batch.version,
                        write = run_batch.write,
                        base = run_batch.base,
                        written_at = case when r_.alive then t else r_.written_at end,
                        alive = false,
                        has_parts = false,
                        size = 0,
                        expires_at = null,
                        deadline = null,
                        memo_until = v_memo_until,
                        removable_at = greatest(
                            v_memo_until,
                            case
                                when run_batch.version = 0 then 0
                                when r_.alive then t + c_day
                                else r_.written_at + c_day
                            end
                        ),
                        token = case when v_held and not v_keep then null else r_.token end,
                        leased_until = case
                            when not v_held then r_.leased_until
                            when v_keep then t + op.lease
                            else 0
                        end,
                        flow = null,
                        state = null,
                        head = null,
                        tags = '{}',
                        data = '{}',
                        large = null
                        where r_.namespace = op.namespace and r_.key = op.key;
                    v_alive := false;
                    code := c_applied;

                else
                    -- An expired record is only hidden: its holder brings it back, anybody else starts anew.
                    v_anew := v_alive and coalesce(r.expires_at <= t, false)
                        and (op.flags & f_fresh <> 0 or not v_held);
                    v_dropped := op.flags & f_replace <> 0 or v_anew;
                    v_names := null;
                    if op.large is not null or op.unset is not null or r.has_large then
                        v_names := array(
                            select jsonb_object_keys(op.data)
                            union all select jsonb_object_keys(op.large)
                            union all select jsonb_array_elements_text(op.unset)
                        );
                    end if;

                    v_size := op.weight + case when v_dropped then 0 else coalesce(r.size, 0) end;
                    if v_size > op.allowed then
                        -- Too much by the rough count: count exactly.
                        select coalesce(sum(w.weight), 0), op.weight + coalesce(sum(w.weight) filter (where w.stays), 0)
                            into v_all, v_size
                            from (
                                select octet_length(f.key) + octet_length(f.value) as weight,
                                    not v_dropped and not coalesce(op.data ? f.key, false)
                                        and not coalesce(op.large ? f.key, false)
                                        and not coalesce(op.unset ? f.key, false) as stays
                                from @schema@.records r_,
                                    jsonb_each_text(r_.data || coalesce(r_.large, '{}')) f
                                where r_.namespace = op.namespace and r_.key = op.key
                                union all
                                select p.weight, not v_dropped and not coalesce(op.parts ? p.name, false)
                                from @schema@.parts p
                                where p.namespace = op.namespace and p.key = op.key
                            ) w;
                        if v_size > op.allowed and v_size > v_all then
                            code := c_too_large;
                            amount := v_size;
                            exit;
                        end if;
                    end if;

                    v_tags := null;
                    if op.tags is not null then
                        v_tags := array(select jsonb_array_elements_text(op.tags));
                    elsif v_anew then
                        v_tags := '{}';
                    end if;

                    v_expires := case
                        when op.flags & f_expiry <> 0 then t + op.expiry
                        when v_anew or (v_held and r.expires_at <= t) then null
                        else r.expires_at
                    end;

                    if v_there then
                        update @schema@.records r_ set
                            version = case
                                when r_.alive then r_.version + 1
                                else greatest(r_.version + 1, trunc(t * 1e6)::bigint)
                            end,
                            write = op.write,
                            base = case when v_dropped then op.write else r_.base end,
                            written_at = t,
                            alive = true,
                            has_parts = (r_.has_parts and not v_dropped) or op.parts is not null,
                            size = v_size,
                            expires_at = v_expires,
                            removable_at = v_expires,
                            deadline = case
                                when op.flags & f_deadline <> 0 then t + op.deadline
                                when v_anew then null
                                else r_.deadline
                            end,
                            memo_until = case when op.memo is not null then t + c_day else r_.memo_until end,
                            token = case when v_held and not v_keep then null else r_.token end,
                            leased_until = case
                                when not v_held then r_.leased_until
                                when v_keep then t + op.lease
                                else 0
                            end,
                            flow = case
                                when op.head is not null then @schema@.indexed(op.flow)
                                when not v_anew then r_.flow
                            end,
                            state = case
                                when op.head is not null then @schema@.indexed(op.state)
                                when not v_anew then r_.state
                            end,
                            head = case
                                when op.head is not null then op.head
                                when not v_anew then r_.head
                            end,
                            tags = coalesce(v_tags, r_.tags),
                            data = case
                                when v_dropped then coalesce(op.data, '{}')
                                when v_names is null then
                                    case when op.data is null then r_.data else r_.data || op.data end
                                else (r_.data - v_names) || coalesce(op.data, '{}')
                            end,
                            -- An unchanged datum is not written again, if it is handed on as it is.
                            large = case
                                when v_dropped then op.large
                                when op.large is null and (r_.large is null or not r_.large ?| v_names) then r_.large
                                else nullif(
                                    (coalesce(r_.large, '{}') - v_names) || coalesce(op.large, '{}'), '{}'
                                )
                            end
                            where r_.namespace = op.namespace and r_.key = op.key
                            returning r_.version, r_.write, r_.base,
                                case when v_returning then r_.written_at end,
                                case when v_returning then r_.head end,
                                case when v_returning then r_.data end,
                                case when v_returning then r_.large end,
                                case when v_returning then r_.tags end,
                                case when v_returning then r_.expires_at end,
                                case when v_returning then r_.deadline end
                            into version, write, base, written_at, head, data, large, tags, expires_at, deadline;
                    else
                        v_number := trunc(t * 1e6)::bigint;
                        v_base := case when v_dropped then op.write else '' end;
                        insert into @schema@.records (
                            namespace, key, version, write, base, written_at, alive, has_parts, size,
                            expires_at, removable_at, deadline, memo_until, flow, state, head, tags, data, large
                        ) values (
                            op.namespace, op.key, greatest(1, v_number), op.write, v_base, t, true,
                            op.parts is not null, v_size, v_expires, v_expires, t + op.deadline,
                            case when op.memo is not null then t + c_day else 0 end,
                            @schema@.indexed(op.flow), @schema@.indexed(op.state), op.head,
                            coalesce(v_tags, '{}'), coalesce(op.data, '{}'), op.large
                        ) on conflict do nothing;
                        if not found then
                            continue;
                        end if;
                        version := greatest(1, v_number);
                        write := op.write;
                        base := v_base;
                        if v_returning then
                            written_at := t;
                            head := op.head;
                            data := coalesce(op.data, '{}');
                            large := op.large;
                            tags := coalesce(v_tags, '{}');
                            expires_at := v_expires;
                            deadline := t + op.deadline;
                        end if;
                    end if;

                    if v_tags is not null and v_tags is distinct from r.tags then
                        delete from @schema@.tags g
                            where g.namespace = op.namespace and g.key = op.key
                                and g.tag in (select @schema@.indexed(x.tag) from unnest(r.tags) x(tag));
                        insert into @schema@.tags (namespace, tag, key)
                            select distinct op.namespace, @schema@.indexed(x.tag), op.key
                            from unnest(v_tags) x(tag);
                    end if;
                    if v_dropped and r.has_parts then
                        delete from @schema@.parts p where p.namespace = op.namespace and p.key = op.key;
                    end if;
                    if op.parts is not null then
                        delete from @schema@.parts p
                            where p.namespace = op.namespace and p.key = op.key
                                and p.name in (select n.key from jsonb_each(op.parts) n where n.value = 'null');
                        insert into @schema@.parts as p (namespace, key, name, weight, body)
                            select op.namespace, op.key, n.key, octet_length(n.key) + octet_length(n.value), n.value
                            from jsonb_each_text(op.parts) n
                            where n.value is not null
                            on conflict (namespace, key, name)
                                do update set weight = excluded.weight, body = excluded.body;
                    end if;
                    v_alive := true;
                    code := c_applied;
                end if;

                if op.memo is not null and op.flags & f_forget = 0 then
                    insert into @schema@.memos as m (namespace, key, body) values (op.namespace, op.key, op.memo)
                        on conflict (namespace, key) do update set body = excluded.body;
                end if;
                exit;
            end loop;

            if v_journal then
                j_codes[op.at] := code;
                if code = c_applied then
                    j_versions[op.at] := version;
                    if write <> op.write then
                        j_writes[op.at] := write;
                    end if;
                    if base is distinct from coalesce(op.base, op.write) then
                        j_bases[op.at] := base;
                    end if;
                elsif code = c_too_large then
                    j_versions[op.at] := amount;
                end if;
            end if;
        end if;

        if not v_alive then
            delete from @schema@.records r_
                where r_.namespace = op.namespace and r_.key = op.key and not r_.alive and r_.removable_at <= t
                    and (r_.token is null or r_.leased_until <= t);
            if found then
                delete from @schema@.memos m where m.namespace = op.namespace and m.key = op.key;
            end if;
        end if;

        return next;
    end loop;

    if v_journal and not v_again then
        update @schema@.lanes l
            set number = p_number, used_at = clock_timestamp(),
                codes = j_codes, versions = j_versions, writes = j_writes, bases = j_bases
            where l.id = p_lane;
    end if;
end
$$;
