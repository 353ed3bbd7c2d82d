-- A record, or the tombstone of one (alive = 0). Times are seconds since 1970. With a rowid, a row may fill a page;
-- WITHOUT ROWID what exceeds a quarter of one would go to pages of its own, taken and given back with every update.
-- NULL in names, part_names and checksum: the row was last written by a release that had none of them.
CREATE TABLE record (
    namespace  TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    number     INTEGER NOT NULL,  -- the version; 0: nothing was ever written, the row is here for its memo
    write      TEXT    NOT NULL,  -- the id of the write that made this version
    base       TEXT    NOT NULL,  -- the id of the last replace or delete
    written_at REAL    NOT NULL,
    alive      INTEGER NOT NULL,
    flow       TEXT,              -- for the indexes; what is true is in head
    state      TEXT,
    head       TEXT,
    tags       TEXT,              -- JSON, in the order given; the table tag is its index
    bytes      INTEGER NOT NULL,  -- of all fields and parts with their names
    expires_at REAL,              -- of a tombstone: when nobody needs it any more
    deadline   REAL,
    names      INTEGER,           -- a sum over the names of its fields
    part_names INTEGER,           -- a sum over the names of its parts
    checksum   INTEGER,           -- over all other columns
    PRIMARY KEY (namespace, key)
) STRICT;

CREATE INDEX record_by_flow ON record (namespace, flow, key) WHERE alive = 1;
CREATE INDEX record_by_state ON record (namespace, state, key) WHERE alive = 1;
CREATE INDEX record_by_deadline ON record (namespace, deadline, key) WHERE deadline IS NOT NULL;
CREATE INDEX record_by_expiry ON record (expires_at) WHERE expires_at IS NOT NULL;

-- A row per field: a counter changes without its neighbours being written again.
CREATE TABLE field (
    namespace TEXT NOT NULL,
    key       TEXT NOT NULL,
    name      TEXT NOT NULL,
    value     TEXT NOT NULL,
    PRIMARY KEY (namespace, key, name)
) STRICT, WITHOUT ROWID;

-- Parts are large; in a table WITHOUT ROWID they would crowd the inner nodes of the tree.
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

-- Only what is held now: this table stays small, so a batch of claims writes a page or two. Its clock is not the wall
-- clock but one that runs since the machine was started. A lease that ends later than its whole length from now was
-- written before the last start, or by a clock that was set back since: it is over.
CREATE TABLE lease (
    namespace TEXT NOT NULL,
    key       TEXT NOT NULL,
    token     TEXT NOT NULL,
    until     REAL NOT NULL,
    length    REAL NOT NULL,
    PRIMARY KEY (namespace, key)
) STRICT, WITHOUT ROWID;
