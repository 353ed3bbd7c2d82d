-- Return a page of records of one index, in the order of their keys.
--
-- KEYS: "-", an index (k: or t:).
-- ARGV: now, width, "(" with the last key of the previous page (or "-"), the limit, the flow and the state to filter by
-- ("*" any, "-" none, "=..." this one), the namespace, and for t: a tag and a newline (for k: an empty string).
-- With a limit of -n it returns the number of keys that follow, or any number from n if there are more. Otherwise it
-- returns the last key that was examined (or false at the end), then key, record, key, record.

-- Limits of one call, because other clients have to wait for it.
local KEYS_A_CALL, BYTES_A_CALL = 1000, 1000000

local prefix = sub(KEYS[2], 1, width)
local after, most, flow, state = ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
local space, begins = ARGV[7], ARGV[8]

local function fits(wanted, found)
  return wanted == '*' or wanted == (found and '=' .. found or '-')
end

local low, high = bounds(begins)
if after ~= '-' then
  low = '(' .. begins .. sub(after, 2)
end
if most < 0 then
  return {index_count(KEYS[2], low, high, -most)}
end
local keys = index_range(KEYS[2], low, high, KEYS_A_CALL)
for n = 1, #keys do
  keys[n] = sub(keys[n], #begins + 1)
end
local page = {false}
local bytes = 0
for n = 1, #keys do
  local key = prefix .. 'r:' .. space .. '/' .. keys[n]
  -- A key that another program has overwritten is not a record, and must not end the scan.
  local found = redis.pcall('HMGET', key, '$z', '$e', '$f', '$s')
  local hidden = found.err or not tonumber(found[1]) or (found[2] and (tonumber(found[2]) or 0) <= now)
  if not hidden and fits(flow, found[3]) and fits(state, found[4]) then
    page[#page + 1] = keys[n]
    page[#page + 1] = call('HGETALL', key)
    bytes = bytes + tonumber(found[1])
  end
  local full = #page > 2 * most or bytes > BYTES_A_CALL
  if (full and n < #keys) or (n == #keys and n == KEYS_A_CALL) then
    page[1] = keys[n]
    break
  end
end
return page
