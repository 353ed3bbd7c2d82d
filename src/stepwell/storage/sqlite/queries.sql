-- The statements of the backend by name, except UPDATEs of records, which columns.py builds. @columns@ stands for the
-- columns of a Row, and @name@ for the statement of that name above.

-- The first column of a query for whole records is the kind of the row: 0 record, 1 field, 2 part, 3 memo.

-- name: get
SELECT 0 AS kind, @columns@
FROM record WHERE namespace = ?1 AND key = ?2
UNION ALL
SELECT 1, name, value, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM field WHERE namespace = ?1 AND key = ?2;

-- name: get_with_parts
@get@
UNION ALL
SELECT 2, name, value, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM part WHERE namespace = ?1 AND key = ?2;

-- The parameters of a range of parts are those of range_bindings() in parts.py.

-- name: get_range
@get@
UNION ALL
SELECT 2, name, value, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM (
    SELECT name, value FROM part
    WHERE namespace = ?1 AND key = ?2 AND name >= ?3 AND name <= ?4 ORDER BY name LIMIT ?5
);

-- name: get_range_reverse
@get@
UNION ALL
SELECT 2, name, value, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM (
    SELECT name, value FROM part
    WHERE namespace = ?1 AND key = ?2 AND name >= ?3 AND name <= ?4 ORDER BY name DESC LIMIT ?5
);

-- name: range_sizes
SELECT name, octet_length(name) + octet_length(value) FROM part
WHERE namespace = ?1 AND key = ?2 AND name >= ?3 AND name <= ?4 ORDER BY name LIMIT ?5;

-- name: range_sizes_reverse
SELECT name, octet_length(name) + octet_length(value) FROM part
WHERE namespace = ?1 AND key = ?2 AND name >= ?3 AND name <= ?4 ORDER BY name DESC LIMIT ?5;

-- name: drop_range
DELETE FROM part WHERE rowid IN (
    SELECT rowid FROM part
    WHERE namespace = ?1 AND key = ?2 AND name >= ?3 AND name <= ?4 ORDER BY name LIMIT ?5
);

-- name: drop_range_reverse
DELETE FROM part WHERE rowid IN (
    SELECT rowid FROM part
    WHERE namespace = ?1 AND key = ?2 AND name >= ?3 AND name <= ?4 ORDER BY name DESC LIMIT ?5
);

-- name: lease
SELECT token, until FROM lease WHERE namespace = ?1 AND key = ?2 AND until > ?3 AND until <= ?3 + length;

-- name: fields
SELECT name, value FROM field WHERE namespace = ?1 AND key = ?2;

-- name: claimed
-- The row of the memo is the last one.
@get@
UNION ALL
SELECT 3, NULL, value, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM memo WHERE namespace = ?1 AND key = ?2 AND until > ?3;

-- name: has_contents
SELECT EXISTS (SELECT 1 FROM field WHERE namespace = ?1 AND key = ?2)
    OR EXISTS (SELECT 1 FROM part WHERE namespace = ?1 AND key = ?2);

-- name: fields_size
SELECT total(octet_length(value)) FROM field WHERE namespace = ?1 AND key = ?2;

-- name: field_sizes
SELECT ?3, octet_length(name) + octet_length(value) FROM field WHERE namespace = ?1 AND key = ?2 AND name = ?3;

-- name: part_sizes
SELECT ?3, octet_length(name) + octet_length(value) FROM part WHERE namespace = ?1 AND key = ?2 AND name = ?3;

-- name: take_lease
INSERT INTO lease (namespace, key, token, until, length) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (namespace, key) DO UPDATE SET token = excluded.token, until = excluded.until, length = excluded.length
WHERE lease.until <= ?6 OR lease.until > ?6 + lease.length OR lease.token = excluded.token;

-- name: extend_lease
UPDATE lease SET until = ?4, length = ?5
WHERE namespace = ?1 AND key = ?2 AND token = ?3 AND until > ?6 AND until <= ?6 + length;

-- name: end_lease
DELETE FROM lease WHERE namespace = ?1 AND key = ?2 AND token = ?3;

-- name: end_running_lease
DELETE FROM lease
WHERE namespace = ?1 AND key = ?2 AND token = ?3 AND until > ?4 AND until <= ?4 + length;

-- name: add_record
INSERT INTO record (@columns@, namespace, key)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18);

-- name: drop_record
DELETE FROM record WHERE namespace = ?1 AND key = ?2;

-- name: drop_mark
DELETE FROM record WHERE namespace = ?1 AND key = ?2 AND number = 0 AND expires_at <= ?3;

-- name: set_field
INSERT INTO field (namespace, key, name, value) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (namespace, key, name) DO UPDATE SET value = excluded.value;

-- name: unset_field
DELETE FROM field WHERE namespace = ?1 AND key = ?2 AND name = ?3;

-- name: drop_fields
DELETE FROM field WHERE namespace = ?1 AND key = ?2;

-- name: set_part
INSERT INTO part (namespace, key, name, value) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (namespace, key, name) DO UPDATE SET value = excluded.value;

-- name: unset_part
DELETE FROM part WHERE namespace = ?1 AND key = ?2 AND name = ?3;

-- name: drop_parts
DELETE FROM part WHERE namespace = ?1 AND key = ?2;

-- name: memo
SELECT value FROM memo WHERE namespace = ?1 AND key = ?2 AND until > ?3;

-- name: set_memo
INSERT INTO memo (namespace, key, value, until) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (namespace, key) DO UPDATE SET value = excluded.value, until = excluded.until;

-- name: drop_memo
DELETE FROM memo WHERE namespace = ?1 AND key = ?2;

-- name: set_tag
INSERT INTO tag (namespace, key, tag) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING;

-- name: unset_tag
DELETE FROM tag WHERE namespace = ?1 AND key = ?2 AND tag = ?3;

-- name: page
SELECT key, @columns@
FROM record
WHERE namespace = :namespace AND key > :after AND (:any_flow OR flow IS :flow) AND (:any_state OR state IS :state)
  AND alive = 1 AND (expires_at IS NULL OR expires_at > :now)
ORDER BY key LIMIT :limit;

-- name: page_by_place
SELECT key, @columns@
FROM record INDEXED BY record_by_place
WHERE namespace = :namespace AND flow IS :flow AND state IS :state AND key > :after
  AND alive = 1 AND (expires_at IS NULL OR expires_at > :now)
ORDER BY key LIMIT :limit;

-- name: keys_of_place
SELECT key
FROM record INDEXED BY record_by_place
WHERE namespace = ?1 AND flow IS ?2 AND state IS ?3 AND key > ?4 AND alive = 1
ORDER BY key LIMIT ?5;

-- name: page_by_tag
SELECT record.key, @columns@
FROM tag CROSS JOIN record USING (namespace, key)
WHERE tag.namespace = :namespace AND tag.tag = :tag AND tag.key > :after
  AND (:any_flow OR flow IS :flow) AND (:any_state OR state IS :state)
  AND alive = 1 AND (expires_at IS NULL OR expires_at > :now)
ORDER BY tag.key LIMIT :limit;

-- name: places
-- All flows and states of a namespace, and for each flow once no state; records without a flow too. One index lookup for
-- each, however many records it has. min() ignores NULL, so each chain of values ends with NULL.
WITH RECURSIVE flows (flow) AS (
    SELECT (SELECT min(flow) FROM record INDEXED BY record_by_place WHERE namespace = ?1 AND alive = 1)
    UNION ALL
    SELECT (
        SELECT min(flow) FROM record INDEXED BY record_by_place
        WHERE namespace = ?1 AND flow > flows.flow AND alive = 1
    )
    FROM flows WHERE flow IS NOT NULL
),
places (flow, state) AS (
    SELECT flow, (
        SELECT min(state) FROM record INDEXED BY record_by_place
        WHERE namespace = ?1 AND flow IS flows.flow AND alive = 1
    )
    FROM flows
    UNION ALL
    SELECT flow, (
        SELECT min(state) FROM record INDEXED BY record_by_place
        WHERE namespace = ?1 AND flow IS places.flow AND state > places.state AND alive = 1
    )
    FROM places WHERE state IS NOT NULL
)
SELECT flow, state FROM places LIMIT ?2;

-- name: counts
-- One place at a time: a GROUP BY over the same index takes twice as long.
SELECT flow, state, (
    SELECT count(*) FROM record INDEXED BY record_by_place
    WHERE namespace = ?1 AND flow IS place.flow AND state IS place.state AND alive = 1
)
FROM (@places@) AS place;

-- name: expired_counts
SELECT namespace, flow, state, count(*)
FROM record INDEXED BY record_by_expiry
WHERE expires_at <= ?1 AND alive = 1
GROUP BY namespace, flow, state;

-- name: oldest
-- Reads the whole table. Reading its rows in the order of an index takes four times as long.
SELECT namespace, flow, state, count(*), min(written_at)
FROM record NOT INDEXED
WHERE alive = 1 AND (expires_at IS NULL OR expires_at > ?1)
GROUP BY namespace, flow, state;

-- name: namespaces
-- One index lookup for each namespace, however many records it has.
WITH RECURSIVE found (namespace) AS (
    SELECT min(namespace) FROM record
    UNION ALL
    SELECT (SELECT min(namespace) FROM record WHERE namespace > found.namespace)
    FROM found WHERE found.namespace IS NOT NULL
)
SELECT namespace FROM found WHERE namespace IS NOT NULL;

-- name: traces
SELECT key FROM tag WHERE namespace = ?1 AND tag = ?2 ORDER BY key LIMIT ?3;

-- name: due
SELECT key, deadline FROM record
WHERE namespace = :namespace AND deadline IS NOT NULL AND deadline <= :before
  AND (deadline, key) > (:after_deadline, :after_key)
  AND alive = 1 AND (expires_at IS NULL OR expires_at > :now)
ORDER BY deadline, key LIMIT :limit;

-- name: due_of_flows
-- CROSS JOIN keeps the order: the first deadlines of each flow, then the first of all of them.
SELECT record.key, record.deadline FROM json_each(:flows) AS wanted CROSS JOIN record
WHERE record.rowid IN (
    SELECT rowid FROM record AS first INDEXED BY record_by_flow_deadline
    WHERE first.namespace = :namespace AND first.flow IS wanted.value
      AND first.deadline IS NOT NULL AND first.deadline <= :before
      AND (first.deadline, first.key) > (:after_deadline, :after_key)
      AND first.alive = 1 AND (first.expires_at IS NULL OR first.expires_at > :now)
    ORDER BY first.deadline, first.key LIMIT :limit
)
ORDER BY record.deadline, record.key LIMIT :limit;

-- name: queued
-- The first records of each queue, then the first of all of them by what follows the name.
SELECT record.key FROM json_each(?2) AS wanted CROSS JOIN record
WHERE record.rowid IN (
    SELECT rowid FROM record AS first INDEXED BY record_by_queue
    WHERE first.namespace = ?1 AND first.queue > wanted.value || char(10) AND first.queue < wanted.value || char(11)
      AND first.alive = 1 AND (first.expires_at IS NULL OR first.expires_at > ?3)
    ORDER BY first.queue, first.key LIMIT ?4
)
ORDER BY substr(record.queue, length(wanted.value) + 2), record.key LIMIT ?4;

-- name: queues
-- One index lookup for each queue, however many records it has. A newline, char(10), ends the name in a queue's text.
WITH RECURSIVE found (queue) AS (
    SELECT (
        SELECT queue FROM record INDEXED BY record_by_queue
        WHERE namespace = ?1 AND queue > ?2 AND alive = 1 AND (expires_at IS NULL OR expires_at > ?4)
        ORDER BY queue LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT queue FROM record INDEXED BY record_by_queue
        WHERE namespace = ?1 AND queue > substr(found.queue, 1, instr(found.queue, char(10)) - 1) || char(11)
          AND alive = 1 AND (expires_at IS NULL OR expires_at > ?4)
        ORDER BY queue LIMIT 1
    )
    FROM found WHERE substr(found.queue, 1, length(?3)) = ?3
)
SELECT substr(queue, 1, instr(queue, char(10)) - 1) FROM found WHERE substr(queue, 1, length(?3)) = ?3 LIMIT ?5;

-- name: expired
SELECT record.rowid, record.namespace, record.key, memo.until,
       @columns@
FROM record
LEFT JOIN memo ON memo.namespace = record.namespace AND memo.key = record.key
WHERE expires_at IS NOT NULL AND expires_at <= :now AND (expires_at, record.rowid) > (:after_expiry, :after_row)
  AND NOT EXISTS (
      SELECT 1 FROM lease
      WHERE lease.namespace = record.namespace AND lease.key = record.key
        AND lease.until > :lease_now AND lease.until <= :lease_now + lease.length
  )
ORDER BY expires_at, record.rowid LIMIT :limit;

-- name: drop_lease
DELETE FROM lease WHERE namespace = ?1 AND key = ?2;

-- name: ended_leases
SELECT lease.namespace, lease.key, record.number
FROM lease
LEFT JOIN record ON record.namespace = lease.namespace AND record.key = lease.key
WHERE lease.until <= :lease_now OR lease.until > :lease_now + lease.length LIMIT :limit;

-- name: memos_after
SELECT namespace, key, until FROM memo WHERE (namespace, key) > (?1, ?2) ORDER BY namespace, key LIMIT ?3;
