-- One index for flow and state instead of two: it has all that counts of records need, and writes that change both touch one
-- index less.
DROP INDEX record_by_flow;
DROP INDEX record_by_state;
CREATE INDEX record_by_place ON record (namespace, flow, state, key) WHERE alive = 1;
