-- Keys with a tag: of records, and of what cleared and expired ones leave behind.
--
-- KEYS: "-", an index of a tag (g:).
-- ARGV: now, width, how many at most. Gives keys.

return call('ZRANGEBYLEX', KEYS[2], '-', '+', 'LIMIT', 0, ARGV[3])
