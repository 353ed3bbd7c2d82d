-- Return the names of queues, in order.
--
-- ARGV: the hash tags, the first text that may be found, the prefix of the names, the limit, the namespace.

local first, begins, most, space = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
-- Whether a record of a name was found that has not expired.
local known = {}

return for_tags(function(prefix)
  local names = {}
  local lowest = '[' .. first
  while #names < most do
    -- One entry at a time: the other entries of a queue are skipped with one lookup.
    local entry = call('ZRANGEBYLEX', prefix .. 'q:' .. space, lowest, '+', 'LIMIT', 0, 1)[1]
    local ends = entry and find(entry, '\n', 1, true)
    local name = entry and sub(entry, 1, ends - 1)
    if not entry or sub(name, 1, #begins) ~= begins then
      break
    end
    known[name] = known[name] or not has_expired(prefix, space, sub(entry, ends + 23))
    if known[name] then
      names[#names + 1] = name
      lowest = '[' .. name .. '\11'
    else
      lowest = '(' .. entry
    end
  end
  return names
end)
