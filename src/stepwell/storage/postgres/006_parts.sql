-- The exact size of all parts, so that no write has to read them; null: the record has parts that were last written by an
-- earlier release. A write then reads their sizes when the record may exceed its limit.
alter table @schema@.records add column parts_size bigint;
alter table @schema@.records alter column parts_size set default 0;

-- Processes of an earlier release call the new function too: its last parameter has a default.
drop function if exists @schema@.run_batch(
    text, bigint, double precision, text, bigint, smallint[], text[], text[], integer[], text[], double precision[],
    text[], text[], bigint[], text[], text[], text[], text[], jsonb[], jsonb[], jsonb[], jsonb[], double precision[],
    double precision[], text[], jsonb[], bigint[], bigint[]
);
drop function if exists @schema@.run_batch(
    text, bigint, double precision, text, bigint, smallint[], text[], text[], integer[], text[], double precision[],
    text[], text[], bigint[], text[], text[], text[], text[], jsonb[], jsonb[], jsonb[], jsonb[], double precision[],
    double precision[], text[], jsonb[], bigint[], text[], bigint[]
);
@include 002_run_batch.sql@
@include 003_sweep.sql@
