-- A row of records is everything that an address holds: a record, or its tombstone, or only a lease or a
-- memo's end. What changes with every claim comes first and what hardly ever changes last: the log keeps
-- only what lies between the first and the last byte that differ.

-- A name that fits into an index: itself, unless it is very long.
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
    -- From here on nothing of it is of use to anybody, unless it is leased. Written by the functions: a generated
    -- column would cost every statement the parsing of its expression.
    removable_at double precision default 0,
    -- At least what fields and parts take; counted exactly when that would be too much.
    size bigint not null default 0,
    -- There is a record, perhaps an expired one.
    alive boolean not null default false,
    has_parts boolean not null default false,
    token text collate "C",
    write text collate "C" not null default '',
    base text collate "C" not null default '',
    namespace text collate "C" not null,
    key text collate "C" not null,
    -- For finding; what is true is in head.
    flow text collate "C",
    state text collate "C",
    head text,
    tags text[] not null default '{}',
    -- Field name to the codec's text. As a jsonb value it would lose NUL, -0.0, 1e16 and the order of keys.
    data jsonb not null default '{}',
    -- The fields over 1 KB, so that a change of the others does not write them again.
    large jsonb,
    primary key (namespace, key)
) with (
    -- Room for the next version of a row on its own page: most updates then touch no index.
    fillfactor = 75,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05
);

-- POSIX is C under another name. With C the planner would take this index for a lookup by namespace and key while
-- a table is small, and go on doing so when it has grown.
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

-- The last batch of each lane and what became of its writes, for the lane that lost the answer.
create table @schema@.lanes (
    number bigint not null,
    used_at timestamptz not null,
    id text collate "C" primary key,
    -- The usual writes: their places in the batch, and the versions they made.
    done bigint[],
    done_versions bigint[],
    -- The others, by place. Writes and bases only where they differ from what the batch itself says.
    codes smallint[],
    versions bigint[],
    writes text[],
    bases text[]
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
