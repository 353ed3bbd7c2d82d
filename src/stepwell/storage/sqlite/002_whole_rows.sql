-- In a table WITHOUT ROWID, a row of more than a quarter of a page spills to overflow pages, which are freed and allocated
-- again with every update: three more pages were written each time.
ALTER TABLE record RENAME TO old_record;
DROP INDEX record_by_flow;
DROP INDEX record_by_state;
DROP INDEX record_by_deadline;
DROP INDEX record_by_expiry;

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
    size       INTEGER NOT NULL,  -- bytes of all fields and parts with their names
    expires_at REAL,              -- of a tombstone: when it can be removed
    deadline   REAL,
    PRIMARY KEY (namespace, key)
) STRICT;

INSERT INTO record SELECT * FROM old_record;
DROP TABLE old_record;

CREATE INDEX record_by_flow ON record (namespace, flow, key) WHERE alive = 1;
CREATE INDEX record_by_state ON record (namespace, state, key) WHERE alive = 1;
CREATE INDEX record_by_deadline ON record (namespace, deadline, key) WHERE deadline IS NOT NULL;
CREATE INDEX record_by_expiry ON record (expires_at) WHERE expires_at IS NOT NULL;

ALTER TABLE memo RENAME TO old_memo;

CREATE TABLE memo (
    namespace TEXT NOT NULL,
    key       TEXT NOT NULL,
    value     TEXT NOT NULL,
    until     REAL NOT NULL,
    PRIMARY KEY (namespace, key)
) STRICT;

INSERT INTO memo SELECT * FROM old_memo;
DROP TABLE old_memo;
