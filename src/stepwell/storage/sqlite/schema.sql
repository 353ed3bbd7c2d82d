-- A record, or its tombstone (alive = 0). Times are seconds since 1970. The table has a rowid, so that a row may fill
-- a page: WITHOUT ROWID, a row of more than a quarter of a page spills to overflow pages, which are freed and allocated again
-- with every update.
CREATE TABLE record (
    namespace  TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    number     INTEGER NOT NULL,  -- the version; 0: there is no record, only a memo
    write      TEXT    NOT NULL,  -- the id of the write that made this version
    base       TEXT    NOT NULL,  -- the id of the last replace or delete
    written_at REAL    NOT NULL,
    alive      INTEGER NOT NULL,
    flow       TEXT,              -- for the indexes only; head has the same
    state      TEXT,
    head       TEXT,
    tags       TEXT,              -- JSON, in their order; the table tag is an index of it
    bytes      INTEGER NOT NULL,  -- of all fields and parts with their names
    expires_at REAL,              -- of a tombstone: when it can be removed
    deadline   REAL,
    names      INTEGER NOT NULL,  -- the sum of the hashes of its field names
    part_names INTEGER NOT NULL,  -- the sum of the hashes of its part names
    checksum   INTEGER NOT NULL,  -- of all other columns and the address
    queue      TEXT,              -- name, newline, negated priority and time (storage/queue_text.py)
    PRIMARY KEY (namespace, key)
) STRICT;

CREATE INDEX record_by_place ON record (namespace, flow, state, key) WHERE alive = 1;
CREATE INDEX record_by_deadline ON record (namespace, deadline, key) WHERE deadline IS NOT NULL;
CREATE INDEX record_by_flow_deadline ON record (namespace, flow, deadline, key) WHERE deadline IS NOT NULL;
CREATE INDEX record_by_queue ON record (namespace, queue, key) WHERE queue IS NOT NULL;
CREATE INDEX record_by_expiry ON record (expires_at) WHERE expires_at IS NOT NULL;

-- One row per field, so that changing a counter does not rewrite the other fields.
CREATE TABLE field (
    namespace TEXT NOT NULL,
    key       TEXT NOT NULL,
    name      TEXT NOT NULL,
    value     TEXT NOT NULL,
    PRIMARY KEY (namespace, key, name)
) STRICT, WITHOUT ROWID;

-- Parts are large. In a table WITHOUT ROWID they would fill the inner pages of the tree.
CREATE TABLE part (
    namespace TEXT NOT NULL,
    key       TEXT NOT NULL,
    name      TEXT NOT NULL,
    value     TEXT NOT NULL,
    PRIMARY KEY (namespace, key, name)
) STRICT;

CREATE TABLE memo (
    namespace TEXT NOT NULL,
    key       TEXT NOT NULL,
    value     TEXT NOT NULL,
    until     REAL NOT NULL,
    PRIMARY KEY (namespace, key)
) STRICT;

CREATE TABLE tag (
    namespace TEXT NOT NULL,
    tag       TEXT NOT NULL,
    key       TEXT NOT NULL,
    PRIMARY KEY (namespace, tag, key)
) STRICT, WITHOUT ROWID;

-- Only leases that run now. The table stays small, so a batch of claims writes one or two pages. Its times are
-- seconds since the machine was started. A lease that ends later than its whole length from now has ended: it was written
-- before the last start of the machine, or by a clock that was set back.
CREATE TABLE lease (
    namespace TEXT NOT NULL,
    key       TEXT NOT NULL,
    token     TEXT NOT NULL,
    until     REAL NOT NULL,
    length    REAL NOT NULL,
    PRIMARY KEY (namespace, key)
) STRICT, WITHOUT ROWID;
