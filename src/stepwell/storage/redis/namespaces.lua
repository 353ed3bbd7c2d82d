-- Namespaces that have records, as they stand in keys.
--
-- KEYS: "-", the index of namespaces (s). ARGV: now, width.

return call('SMEMBERS', KEYS[2])
