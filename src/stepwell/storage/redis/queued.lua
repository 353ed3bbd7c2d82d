-- Return the first entries of each of these queues: the texts of the index behind the name, which end with the key.
--
-- ARGV: the hash tags, the limit, the namespace, the queues.

local most, space, queues = ARGV[4], ARGV[5], ARGV[6]

local function add(queued, prefix, queue)
  local offset, last = 0, #queued + most
  repeat
    -- A newline ends the name.
    local found = call(
      'ZRANGEBYLEX', prefix .. 'q:' .. space, '[' .. queue .. '\n', '(' .. queue .. '\11', 'LIMIT', offset, most
    )
    for _, entry in ipairs(found) do
      if #queued < last and not has_expired(prefix, space, sub(entry, #queue + 24)) then
        queued[#queued + 1] = sub(entry, #queue + 2)
      end
    end
    offset = offset + most
  until #found < most or #queued >= last
end

return for_tags(function(prefix)
  local queued = {}
  -- Most indexes have no entries.
  if #queues == 1 or call('EXISTS', prefix .. 'q:' .. space) == 1 then
    for _, queue in ipairs(queues) do
      add(queued, prefix, queue)
    end
  end
  return queued
end)
