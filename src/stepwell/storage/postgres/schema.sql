-- A row of records is a record, a tombstone, or only a lease or the end of a memo. Columns that change with every claim
-- come first and columns that rarely change come last: the log stores only the bytes from the first to the last
-- difference. docs/decisions/021-bytes-in-postgresql.md has the reasons.

-- Returns a name that fits into an index: the name itself, unless it is very long.
create function @schema@.indexed(name text) returns text
    language sql immutable parallel safe
    return case when octet_length(name) <= 256 then name else left(name, 64) || ' ' || md5(name) end;

-- Returns a memo that is stored in the row of its record: one row and one index entry less. A long one is in memos, so that
-- claims do not copy it.
create function @schema@.short(memo text) returns text
    language sql immutable parallel safe
    return case when octet_length(memo) <= 256 then memo end;

-- Returns the hash of a tag, which finds records; their column tags decides. It leaves out the kind of a tag, so that user:1
-- and chat:1 of a private chat take one row.
create function @schema@.tag_hash(namespace text, tag text) returns bigint
    language sql immutable parallel safe
    return ('x' || left(encode(sha256(convert_to(
        namespace || chr(10) || substr(tag, strpos(tag, ':') + 1), 'UTF8'
    )), 'hex'), 16))::bit(64)::bigint;

create table @schema@.records (
    leased_until double precision not null default 0,
    version bigint not null default 0,
    written_at double precision not null default 0,
    memo_until double precision not null default 0,
    expires_at double precision,
    deadline double precision,
    -- When the row may be removed, unless it is leased. Not a generated column, because every statement would parse
    -- its expression.
    removable_at double precision default 0,
    -- Upper bound of the size of fields and parts; computed exactly when it exceeds the limit.
    size bigint not null default 0,
    -- Whether there is a record, perhaps an expired one.
    alive boolean not null default false,
    has_parts boolean not null default false,
    token text collate "C",
    write text collate "C" not null default '',
    base text collate "C" not null default '',
    namespace text collate "C" not null,
    key text collate "C" not null,
    -- For queries only; head is authoritative.
    flow text collate "C",
    state text collate "C",
    head text,
    tags text[] not null default '{}',
    -- Field names and encoded texts. Plain jsonb values would lose NUL, -0.0, 1e16 and the order of keys.
    data jsonb not null default '{}',
    -- Fields over 1 KB, which are not rewritten when other fields change.
    large jsonb,
    -- The place of a record in a queue: the name, a newline, the negated priority and the time of entering it, as text that
    -- sorts in the order of the queue (storage/queue_text.py).
    queue text collate "C",
    -- The exact size of all parts, so that no write has to read them.
    parts_size bigint not null default 0,
    memo text,
    primary key (namespace, key)
) with (
    -- Leaves room for the next version of a row on its page. Of 70 to 100, this fill factor takes the fewest bytes after some
    -- updates of each record, and almost as many of them touch no index as with the lowest.
    fillfactor = 90,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05
);

-- POSIX is the same order as C. With C the planner would use this index for lookups by namespace and key while the
-- table is small, and keep that plan when it has grown.
create index records_by_state on @schema@.records (
    namespace collate "POSIX", flow, state, key collate "POSIX"
);
create index records_by_deadline on @schema@.records (namespace, deadline, key) where deadline is not null;
create index records_by_flow_deadline on @schema@.records (namespace, flow, deadline, key) where deadline is not null;
create index records_by_queue on @schema@.records (namespace, queue, key) where queue is not null;
create index records_by_removal on @schema@.records (removable_at) where removable_at is not null;

create table @schema@.tagged (
    hash bigint not null,
    key text collate "C" not null,
    primary key (hash, key)
);

create table @schema@.parts (
    namespace text collate "C" not null,
    key text collate "C" not null,
    name text collate "C" not null,
    weight bigint not null,
    body text not null,
    primary key (namespace, key, name)
);

create table @schema@.memos (
    namespace text collate "C" not null,
    key text collate "C" not null,
    body text not null,
    primary key (namespace, key)
) with (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.05);

-- The journal: the last batch of each lane and the results of its writes, for a lane that lost the answer.
create table @schema@.journal (
    number bigint not null,
    used_at timestamptz not null,
    id text collate "C" primary key,
    -- By position. Codes of writes that were refused; writes and bases only where they differ from those of the batch.
    codes text[],
    versions bigint[],
    writes text[],
    bases text[]
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- A view of the visible records with decoded values, for queries.

-- Returns a stored value without its checksum. A damaged value, or one that jsonb does not support, such as a NUL, is
-- returned as text, so that it does not fail the whole query.
create function @schema@.value(stored text) returns jsonb
    language plpgsql immutable strict parallel safe
as $$
begin
    return substr(stored, 10)::jsonb;
exception
    when data_exception or program_limit_exceeded then
        return to_jsonb(substr(stored, 10));
end
$$;

create view @schema@.states as
    select
        r.namespace,
        r.key,
        r.flow,
        r.state,
        coalesce(
            (
                select jsonb_object_agg(f.key, @schema@.value(f.value))
                from jsonb_each_text(r.data || coalesce(r.large, '{}')) f
            ),
            '{}'
        ) as data,
        r.tags,
        r.version,
        to_timestamp(r.written_at) as written_at,
        to_timestamp(r.expires_at) as expires_at,
        to_timestamp(r.deadline) as deadline,
        coalesce(r.token is not null and r.leased_until > date_part('epoch', now()), false) as held
    from @schema@.records r
    where r.alive and (r.expires_at is null or r.expires_at > date_part('epoch', now()));
