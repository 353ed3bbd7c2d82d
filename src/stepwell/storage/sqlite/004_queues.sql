-- Add the place of a record in a queue, as text that sorts in the order of the queue (storage/queue_text.py). The indexes
-- have only rows with a queue or a deadline, so that other writes do not touch them.
ALTER TABLE record ADD COLUMN queue TEXT;
CREATE INDEX record_by_flow_deadline ON record (namespace, flow, deadline, key) WHERE deadline IS NOT NULL;
CREATE INDEX record_by_queue ON record (namespace, queue, key) WHERE queue IS NOT NULL;
