-- Remove expired records and old tombstones with their index entries, unless they are held.
--
-- ARGV: the hash tags, and the limit for each of them (0: only count).
-- Returns the number of removable addresses, the number removed, then address and head (or false) of expired records.

return for_tags(function(prefix, place)
  local index, most = prefix .. 'x', ARGV[4][place]
  local swept = {call('ZCOUNT', index, '-inf', now_text), 0}
  -- The number of addresses that have to stay for now.
  local stay = 0
  while swept[2] < most do
    local names = call('ZRANGEBYSCORE', index, '-inf', now_text, 'LIMIT', stay, most - swept[2])
    if #names == 0 then
      break
    end
    for _, name in ipairs(names) do
      local key = prefix .. 'r:' .. name
      local found = call('HMGET', key, '$z', '$g', '$d', '$h', '$f', '$q')
      local beside = call('MGET', prefix .. 'l:' .. name, prefix .. 'm:' .. name)
      local _, lease_till = timed(beside[1])
      local _, memo_till = timed(beside[2])
      -- A tombstone stays as long as its memo.
      if lease_till > now or (not found[1] and memo_till > now) then
        stay = stay + 1
      else
        if found[1] then
          unlist(prefix, name, found[3], found[5], found[6])
          swept[#swept + 1] = name
          swept[#swept + 1] = found[4]
        end
        call('UNLINK', key, prefix .. 'p:' .. name, prefix .. 'o:' .. name)
        if found[2] and memo_till > now then
          -- The memo must still be found by its tags when a user's data is deleted.
          call('HSET', key, '$g', found[2])
          call('ZADD', index, exact(memo_till), name)
        else
          untag(prefix, name, found[2])
          call('ZREM', index, name)
        end
        swept[2] = swept[2] + 1
      end
    end
  end
  return swept
end)
