-- Remove records that have expired and old tombstones, with their index entries, unless somebody holds them.
--
-- KEYS: "-", the index of what may be removed (x).
-- ARGV: now, width, how many at most ("0": only count them).
-- Gives how many there were to remove, how many were removed, then address and head (or false) of each expired record.

local prefix = sub(KEYS[2], 1, width)
local most = tonumber(ARGV[3])
local swept = {call('ZCOUNT', KEYS[2], '-inf', now_text), 0}
-- What has to stay for now is stepped over.
local stay = 0
while swept[2] < most do
  local names = call('ZRANGEBYSCORE', KEYS[2], '-inf', now_text, 'LIMIT', stay, most - swept[2])
  if #names == 0 then
    break
  end
  for _, name in ipairs(names) do
    local key = prefix .. 'r:' .. name
    local found = call('HMGET', key, '$z', '$g', '$d', '$h')
    local beside = call('MGET', prefix .. 'l:' .. name, prefix .. 'm:' .. name)
    local _, lease_till = timed(beside[1])
    local _, memo_till = timed(beside[2])
    -- What is left of a record stays as long as its memo.
    if lease_till > now or (not found[1] and memo_till > now) then
      stay = stay + 1
    else
      if found[1] then
        unlist(prefix, name, found[3])
        swept[#swept + 1] = name
        swept[#swept + 1] = found[4]
      end
      call('DEL', key, prefix .. 'p:' .. name)
      if found[2] and memo_till > now then
        -- Whoever its tags name must be able to have the memo forgotten too.
        call('HSET', key, '$g', found[2])
        call('ZADD', KEYS[2], exact(memo_till), name)
      else
        untag(prefix, name, found[2])
        call('ZREM', KEYS[2], name)
      end
      swept[2] = swept[2] + 1
    end
  end
end
return swept
