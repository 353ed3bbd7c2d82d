-- Return the keys of one namespace whose deadline has passed, earliest first, in each index.
--
-- KEYS: "-", indexes of deadlines (d:).
-- ARGV: now, width, the latest deadline ("": now), the limit, the namespace, and the deadline and key of the last
-- entry of the previous page, or two empty strings; then flows, as in the names of their indexes (f:), or none for all
-- deadlines. Returns key, deadline, key, deadline for each index: the first ones of each flow.

local before, most, space, last, last_key = ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6], ARGV[7]
if before == '' then
  before = now_text
end

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

local function add(due, prefix, index)
  local offset, full = 0, #due + 2 * most
  local lowest = last == '' and '-inf' or last
  repeat
    local found = call('ZRANGEBYSCORE', index, lowest, before, 'WITHSCORES', 'LIMIT', offset, most)
    for n = 1, #found, 2 do
      local key, deadline = found[n], found[n + 1]
      if last == '' or tonumber(deadline) > tonumber(last) or greater(key, last_key) then
        local expires = call('HGET', prefix .. 'r:' .. space .. '/' .. key, '$e')
        if not (expires and tonumber(expires) <= now) and #due < full then
          due[#due + 1] = key
          due[#due + 1] = deadline
        end
      end
    end
    offset = offset + most
  until #found < 2 * most or #due >= full
end

local all = {}
for n = 2, #KEYS do
  local due, prefix = {}, sub(KEYS[n], 1, width)
  if ARGV[8] == nil then
    add(due, prefix, KEYS[n])
  elseif ARGV[9] == nil or #call('ZRANGEBYSCORE', KEYS[n], '-inf', before, 'LIMIT', 0, 1) > 0 then
    for each = 8, #ARGV do
      add(due, prefix, prefix .. 'f:' .. space .. '/' .. ARGV[each])
    end
  end
  all[n - 1] = due
end
return all
