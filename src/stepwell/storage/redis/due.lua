-- Return the keys of namespaces whose deadline has passed, earliest first, in each index.
--
-- ARGV: the hash tags, the latest deadline (false: now), the limit, the deadline (or false) and the key of the last entry
-- of the previous page, and pairs of a namespace and its flows, as in the names of their indexes (f:), or false for all
-- deadlines. Returns key, deadline, key, deadline for each namespace: the first ones of each flow.

local before, most, last, last_key, wanted = exact(ARGV[4] or now), ARGV[5], ARGV[6], ARGV[7], ARGV[8]

-- Compare bytes, as the index does. Lua's own comparison depends on the server's locale.
local function greater(a, b)
  for n = 1, math.min(#a, #b) do
    local x, y = string.byte(a, n), string.byte(b, n)
    if x ~= y then
      return x > y
    end
  end
  return #a > #b
end

local function add(due, prefix, space, index)
  local offset, full = 0, #due + 2 * most
  local lowest = last and exact(last) or '-inf'
  repeat
    local found = call('ZRANGEBYSCORE', index, lowest, before, 'WITHSCORES', 'LIMIT', offset, most)
    for n = 1, #found, 2 do
      local key, deadline = found[n], found[n + 1]
      local follows = not last or tonumber(deadline) > last or greater(key, last_key)
      if follows and #due < full and not has_expired(prefix, space, key) then
        due[#due + 1] = key
        due[#due + 1] = deadline
      end
    end
    offset = offset + most
  until #found < 2 * most or #due >= full
end

local function first_of(prefix, space, flows)
  local due, index = {}, prefix .. 'd:' .. space
  if not flows then
    add(due, prefix, space, index)
  elseif #flows == 1 or #call('ZRANGEBYSCORE', index, '-inf', before, 'LIMIT', 0, 1) > 0 then
    for _, flow in ipairs(flows) do
      add(due, prefix, space, prefix .. 'f:' .. space .. '/' .. flow)
    end
  end
  return due
end

return for_tags(function(prefix)
  local all = {}
  for n, each in ipairs(wanted) do
    all[n] = first_of(prefix, each[1], each[2])
  end
  return all
end)
