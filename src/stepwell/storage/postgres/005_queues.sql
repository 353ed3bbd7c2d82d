-- The place of a record in a queue: the name, a newline, the negated priority and the time of entering it, as text that sorts
-- in the order of the queue (storage/queue_text.py).
alter table @schema@.records add column queue text collate "C";

-- These indexes have only rows with a queue or a deadline, so that other writes do not touch them.
create index records_by_queue on @schema@.records (namespace, queue, key) where queue is not null;
create index records_by_flow_deadline on @schema@.records (namespace, flow, deadline, key) where deadline is not null;

-- Processes of an earlier release call the function with fewer arguments, which stays until the next migration.
@include 002_run_batch.sql@
@include 003_sweep.sql@
