-- Add a checksum to each record and hashes of the names of its fields and parts. They are NULL in existing rows until
-- their next write. The column "size" is renamed so that a process of an earlier release, which writes no checksums,
-- fails instead of leaving a wrong one.
ALTER TABLE record RENAME COLUMN size TO bytes;
ALTER TABLE record ADD COLUMN names INTEGER;
ALTER TABLE record ADD COLUMN part_names INTEGER;
ALTER TABLE record ADD COLUMN checksum INTEGER;

-- Leases use the clock that starts with the machine, and have their length in seconds.
DROP TABLE lease;

CREATE TABLE lease (
    namespace TEXT NOT NULL,
    key       TEXT NOT NULL,
    token     TEXT NOT NULL,
    until     REAL NOT NULL,
    length    REAL NOT NULL,
    PRIMARY KEY (namespace, key)
) STRICT, WITHOUT ROWID;
