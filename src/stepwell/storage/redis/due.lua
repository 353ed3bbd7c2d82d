-- Return the keys of one namespace whose deadline has passed, earliest first, in each index.
--
-- KEYS: "-", indexes of deadlines (d: or f:).
-- ARGV: now, width, the latest deadline ("": now), the limit, the namespace, and the deadline and key of the last
-- entry of the previous page, or two empty strings. Returns key, deadline, key, deadline for each.

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

local function of(index)
  local prefix = sub(index, 1, width)
  local due = {}
  local offset = 0
  local lowest = last == '' and '-inf' or last
  repeat
    local found = call('ZRANGEBYSCORE', index, lowest, before, 'WITHSCORES', 'LIMIT', offset, most)
    for n = 1, #found, 2 do
      local key, deadline = found[n], found[n + 1]
      if last == '' or tonumber(deadline) > tonumber(last) or greater(key, last_key) then
        local expires = call('HGET', prefix .. 'r:' .. space .. '/' .. key, '$e')
        if not (expires and tonumber(expires) <= now) and #due < 2 * most then
          due[#due + 1] = key
          due[#due + 1] = deadline
        end
      end
    end
    offset = offset + most
  until #found < 2 * most or #due >= 2 * most
  return due
end

local all = {}
for n = 2, #KEYS do
  all[n - 1] = of(KEYS[n])
end
return all
