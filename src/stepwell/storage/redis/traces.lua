-- Return the keys with a tag: of records, tombstones and memos.
--
-- ARGV: the hash tags, the limit, the namespace, and the tag with a newline.

local most, space, begins = ARGV[4], ARGV[5], ARGV[6]

return for_tags(function(prefix)
  local low, high = bounds(begins)
  return keys_of(prefix .. 't:' .. space, begins, low, high, most)
end)
