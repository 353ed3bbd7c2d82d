-- Return the names of queues in each index, in order.
--
-- KEYS: "-", indexes of queues (q:). ARGV: now, width, the first text that may be found, the prefix of the names, the
-- limit, the namespace.

local first, begins, most, space = ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
-- Whether a record of a name was found that has not expired.
local known = {}

local function of(index)
  local prefix = sub(index, 1, width)
  local names = {}
  local lowest = first == '' and '-' or '[' .. first
  while #names < most do
    -- One entry at a time: the other entries of a queue are skipped with one lookup.
    local entry = call('ZRANGEBYLEX', index, lowest, '+', 'LIMIT', 0, 1)[1]
    local ends = entry and find(entry, '\n', 1, true)
    local name = entry and sub(entry, 1, ends - 1)
    if not entry or sub(name, 1, #begins) ~= begins then
      break
    end
    if not known[name] then
      local expires = call('HGET', prefix .. 'r:' .. space .. '/' .. sub(entry, ends + 23), '$e')
      known[name] = not (expires and tonumber(expires) <= now)
    end
    if known[name] then
      names[#names + 1] = name
      lowest = '[' .. name .. '\11'
    else
      lowest = '(' .. entry
    end
  end
  return names
end

local all = {}
for n = 2, #KEYS do
  all[n - 1] = of(KEYS[n])
end
return all
