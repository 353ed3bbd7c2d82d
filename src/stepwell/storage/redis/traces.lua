-- Keys with a tag: of records, and of what cleared and expired ones leave behind. Or all namespaces.
--
-- KEYS: "-", an index of a tag (g:), or that of namespaces (s).
-- ARGV: now, width, how many at most. Gives keys, or namespaces.

return call('ZRANGEBYLEX', KEYS[2], '-', '+', 'LIMIT', 0, ARGV[3])
