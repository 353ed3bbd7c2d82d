-- Return the first entries of a queue in each index: the texts of the index, which end with the key.
--
-- KEYS: "-", indexes of queues (q:). ARGV: now, width, the queue, the limit, the namespace.

local queue, most, space = ARGV[3], tonumber(ARGV[4]), ARGV[5]

local function of(index)
  local prefix = sub(index, 1, width)
  local queued = {}
  local offset = 0
  repeat
    -- A newline ends the name.
    local found = call('ZRANGEBYLEX', index, '[' .. queue .. '\n', '(' .. queue .. '\11', 'LIMIT', offset, most)
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
end

local all = {}
for n = 2, #KEYS do
  all[n - 1] = of(KEYS[n])
end
return all
