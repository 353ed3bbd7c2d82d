-- A row of records is a record, a tombstone, or only a lease or the end of a memo. Columns that change with every claim
-- come first and columns that rarely change come last: the log stores only the bytes from the first to the last
-- difference.

-- Returns a name that fits into an index: the name itself, unless it is very long.
create function @schema@.indexed(name text) returns text
    language sql immutable parallel safe
    return case when octet_length(name) <= 256 then name else left(name, 64) || ' ' || md5(name) end;

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
    primary key (namespace, key)
) with (
    -- Leaves room for the next version of a row on its page, so that most updates touch no index.
    fillfactor = 75,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05
);

-- POSIX is the same order as C. With C the planner would use this index for lookups by namespace and key while the
-- table is small, and keep that plan when it has grown.
create index records_by_state on @schema@.records (
    namespace collate "POSIX", flow, state, key collate "POSIX"
);
create index records_by_deadline on @schema@.records (namespace, deadline, key) where deadline is not null;
create index records_by_removal on @schema@.records (removable_at) where removable_at is not null;

create table @schema@.tags (
    namespace text collate "C" not null,
    tag text collate "C" not null,
    key text collate "C" not null,
    primary key (namespace, tag, key)
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
create table @schema@.lanes (
    number bigint not null,
    used_at timestamptz not null,
    id text collate "C" primary key,
    -- Simple writes: their positions in the batch and their new versions.
    done bigint[],
    done_versions bigint[],
    -- Other writes, by position. Writes and bases only where they differ from those of the batch.
    codes smallint[],
    versions bigint[],
    writes text[],
    bases text[]
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
