-- Return the keys with a tag: of records, tombstones and memos.
--
-- KEYS: "-", the index of a tag (g:). ARGV: now, width, the limit.

return call('ZRANGEBYLEX', KEYS[2], '-', '+', 'LIMIT', 0, ARGV[3])
