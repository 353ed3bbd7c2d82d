-- Return the keys with a tag: of records, tombstones and memos.
--
-- KEYS: "-", the index of tags (t:). ARGV: now, width, the limit, the namespace, and the tag with a newline.

local begins = ARGV[5]
local low, high = bounds(begins)
local keys = index_range(KEYS[2], low, high, tonumber(ARGV[3]))
for n = 1, #keys do
  keys[n] = sub(keys[n], #begins + 1)
end
return keys
