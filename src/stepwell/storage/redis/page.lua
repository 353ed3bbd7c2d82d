-- Return a page of records of one index, in the order of their keys.
--
-- ARGV: the hash tags, for each of them the last key of the previous page (or false) and the limit, then the flow and the
-- state to filter by ("*" any, "-" none, "=..." this one), the namespace, and a tag and a newline (an empty string: all).
-- With a limit of -n it returns the number of keys that follow, or any number from n if there are more. Otherwise it
-- returns the last key that was examined (or false at the end), then key, record, key, record.

-- Limits of one hash tag, because other clients have to wait for the call.
local MOST_KEYS, MOST_BYTES = 1000, 1000000

local afters, limits, flow, state, space, begins = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9]

local function fits(wanted, found)
  return wanted == '*' or wanted == (found and '=' .. found or '-')
end

return for_tags(function(prefix, place)
  local index, most = prefix .. (begins == '' and 'k:' or 't:') .. space, limits[place]
  local low, high = bounds(begins)
  if afters[place] then
    low = '(' .. begins .. afters[place]
  end
  if most < 0 then
    return {index_count(index, low, high, -most)}
  end
  local keys = keys_of(index, begins, low, high, MOST_KEYS)
  local page, bytes = {false}, 0
  for n, name in ipairs(keys) do
    local key = prefix .. 'r:' .. space .. '/' .. name
    -- A key that another program has overwritten is not a record, and must not end the scan.
    local found = redis.pcall('HMGET', key, '$z', '$e', '$f', '$s')
    local hidden = found.err or not tonumber(found[1]) or (found[2] and (tonumber(found[2]) or 0) <= now)
    if not hidden and fits(flow, found[3]) and fits(state, found[4]) then
      page[#page + 1] = name
      page[#page + 1] = call('HGETALL', key)
      bytes = bytes + tonumber(found[1])
    end
    local full = #page > 2 * most or bytes > MOST_BYTES
    if (full and n < #keys) or (n == #keys and n == MOST_KEYS) then
      page[1] = name
      break
    end
  end
  return page
end)
