-- Return the first entries of a queue: the texts of the index, which end with the key.
--
-- KEYS: "-", the index of queues (q:). ARGV: now, width, the queue, the limit, the namespace.

local prefix = sub(KEYS[2], 1, width)
local queue, most, space = ARGV[3], tonumber(ARGV[4]), ARGV[5]
local queued = {}
local offset = 0
repeat
  -- A newline ends the name.
  local found = call('ZRANGEBYLEX', KEYS[2], '[' .. queue .. '\n', '(' .. queue .. '\11', 'LIMIT', offset, most)
  for n = 1, #found do
    local key = sub(found[n], #queue + 24)
    local expires = call('HGET', prefix .. 'r:' .. space .. '/' .. key, '$e')
    if not (expires and tonumber(expires) <= now) and #queued < most then
      queued[#queued + 1] = found[n]
    end
  end
  offset = offset + most
until #found < most or #queued >= most
return queued
