-- Return the names of queues in order, with one lookup for each.
--
-- KEYS: "-", the index of queues (q:). ARGV: now, width, the first text that may be found, the prefix of the names, the
-- limit, the namespace.

local prefix = sub(KEYS[2], 1, width)
local first, begins, most, space = ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
local names = {}
local lowest = first == '' and '-' or '[' .. first
while #names < most do
  local found = call('ZRANGEBYLEX', KEYS[2], lowest, '+', 'LIMIT', 0, 1)[1]
  if not found or sub(found, 1, #begins) ~= begins then
    break
  end
  local ends = find(found, '\n', 1, true)
  local expires = call('HGET', prefix .. 'r:' .. space .. '/' .. sub(found, ends + 23), '$e')
  if expires and tonumber(expires) <= now then
    lowest = '(' .. found
  else
    local name = sub(found, 1, ends - 1)
    names[#names + 1] = name
    lowest = '[' .. name .. '\11'
  end
end
return names
