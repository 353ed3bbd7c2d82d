-- Return the first entries of each of these queues in each index: the texts of the index behind the name, which end with
-- the key.
--
-- KEYS: "-", indexes of queues (q:). ARGV: now, width, the limit, the namespace, the queues.

local most, space = tonumber(ARGV[3]), ARGV[4]

local function add(queued, index, queue)
  local prefix = sub(index, 1, width)
  local offset, last = 0, #queued + most
  repeat
    -- A newline ends the name.
    local found = call('ZRANGEBYLEX', index, '[' .. queue .. '\n', '(' .. queue .. '\11', 'LIMIT', offset, most)
    for n = 1, #found do
      local key = sub(found[n], #queue + 24)
      local expires = call('HGET', prefix .. 'r:' .. space .. '/' .. key, '$e')
      if not (expires and tonumber(expires) <= now) and #queued < last then
        queued[#queued + 1] = sub(found[n], #queue + 2)
      end
    end
    offset = offset + most
  until #found < most or #queued >= last
end

local all = {}
for n = 2, #KEYS do
  all[n - 1] = {}
  -- Most indexes have no entries.
  if ARGV[6] == nil or call('EXISTS', KEYS[n]) == 1 then
    for each = 5, #ARGV do
      add(all[n - 1], KEYS[n], ARGV[each])
    end
  end
end
return all
