-- Return the namespaces that have records, as they are written in keys.
--
-- KEYS: "-", the index of namespaces (s). ARGV: now, width.

return call('SMEMBERS', KEYS[2])
