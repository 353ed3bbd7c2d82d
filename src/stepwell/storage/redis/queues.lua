-- Return the names of queues in each index, in order.
--
-- KEYS: "-", indexes of queues (q:). ARGV: now, width, the first text that may be found, the prefix of the names, the
-- limit, the namespace.

-- Entries read at once. After them, the other entries of a long queue are skipped with one lookup.
local AT_ONCE = 16

local first, begins, most, space = ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
-- Whether a record of a name was found that has not expired.
local known = {}

local function of(index)
  local prefix = sub(index, 1, width)
  local names = {}
  local lowest = first == '' and '-' or '[' .. first
  local listed
  while #names < most do
    local found = call('ZRANGEBYLEX', index, lowest, '+', 'LIMIT', 0, AT_ONCE)
    for n = 1, #found do
      local ends = find(found[n], '\n', 1, true)
      local name = sub(found[n], 1, ends - 1)
      if sub(name, 1, #begins) ~= begins or #names == most then
        return names
      end
      if name ~= listed then
        if not known[name] then
          local expires = call('HGET', prefix .. 'r:' .. space .. '/' .. sub(found[n], ends + 23), '$e')
          known[name] = not (expires and tonumber(expires) <= now)
        end
        if known[name] then
          listed = name
          names[#names + 1] = name
        end
      end
      lowest = name == listed and '[' .. name .. '\11' or '(' .. found[n]
    end
    if #found < AT_ONCE then
      break
    end
  end
  return names
end

local all = {}
for n = 2, #KEYS do
  all[n - 1] = of(KEYS[n])
end
return all
