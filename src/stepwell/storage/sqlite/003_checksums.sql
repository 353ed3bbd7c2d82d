-- A record says which fields and parts it has, and its row has a checksum. Rows of earlier releases have neither (NULL)
-- until their next write. The column "size" is renamed: a process of an earlier release, which writes no checksums, then
-- fails instead of leaving a wrong one.
ALTER TABLE record RENAME COLUMN size TO bytes;
ALTER TABLE record ADD COLUMN names INTEGER;
ALTER TABLE record ADD COLUMN part_names INTEGER;
ALTER TABLE record ADD COLUMN checksum INTEGER;

-- Leases are kept on the clock that runs since the machine was started, and know how long they are.
DROP TABLE lease;

CREATE TABLE lease (
    namespace TEXT NOT NULL,
    key       TEXT NOT NULL,
    token     TEXT NOT NULL,
    until     REAL NOT NULL,
    length    REAL NOT NULL,
    PRIMARY KEY (namespace, key)
) STRICT, WITHOUT ROWID;
