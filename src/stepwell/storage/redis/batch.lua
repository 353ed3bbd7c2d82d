-- Run one batch: read, claim, write, release. The rules of writes are those of stepwell/storage/reference.py.
--
-- ARGV: the id of the lane, the number of the batch for its journals, that for its fences (0: none), and groups. The
-- operations of a group have one hash tag, and a journal or a fence of their own. A group is a list: how to use these, the
-- hash tag of their keys, and the operations. An operation is a list: its letter, the key of the record, and the arguments
-- that its function has here. Returns now and, for each group, the results of its operations, or the text of an error if
-- none was run. Each group and each operation succeeds or fails by itself.
--
-- The journal of writes ("journal") keeps the number and the results of the last batch: the same number returns the
-- kept results, a lower number is refused. Claims have a fence instead, which is only a number: a batch with a lower
-- number is refused ("check"). The first batch after an unanswered one also raises the fence to its number ("raise").

local EMPTY = {}

-- Call a command with a list of any length; return its replies in one list.
local function in_pieces(command, key, list)
  local size = #list
  if size <= MOST then
    return call(command, key, unpack(list))
  end
  local replies = {}
  for first = 1, size, MOST do
    local reply = call(command, key, unpack(list, first, math.min(first + MOST - 1, size)))
    for n = 1, type(reply) == 'table' and #reply or 0 do
      replies[#replies + 1] = reply[n]
    end
  end
  return replies
end

-- The fields of a record besides its data: size, version, write id, base, expiry, deadline, tags, flow, queue.
local SYSTEM = {'$z', '$v', '$w', '$b', '$e', '$d', '$g', '$f', '$q'}

-- Return the system fields, then the data fields of two lists. A missing one is false.
local function read(key, names, more)
  if #more == 0 and #names <= MOST then
    return call('HMGET', key, '$z', '$v', '$w', '$b', '$e', '$d', '$g', '$f', '$q', unpack(names))
  end
  local fields = {unpack(SYSTEM)}
  for n = 1, #names do
    fields[#SYSTEM + n] = names[n]
  end
  for n = 1, #more do
    fields[#SYSTEM + #names + n] = more[n]
  end
  return in_pieces('HMGET', key, fields)
end

-- Delete the marker of a record that was forgotten while it was held, once its lease has ended.
local function drop_marker(key)
  local found = redis.pcall('HMGET', key, '$b', '$v')
  if found[1] and not found[2] then
    local _, till = timed(call('GET', sub(key, 1, width) .. 'l' .. sub(key, width + 2)))
    if till <= now then
      call('DEL', key)
    end
  end
end

-- Return the names of the parts in a range: the first and last name in the form of ZRANGEBYLEX, the limit (-1: none), and
-- whether the order is reversed.
local function range(prefix, name, wanted)
  local sorted, first, last, limit, reverse = prefix .. 'o:' .. name, unpack(wanted)
  if call('EXISTS', sorted) == 0 then
    local entries = {}
    for at, part in ipairs(call('HKEYS', prefix .. 'p:' .. name)) do
      entries[2 * at - 1], entries[2 * at] = 0, part
    end
    if #entries > 0 then
      in_pieces('ZADD', sorted, entries)
    end
  end
  if reverse then
    return call('ZREVRANGEBYLEX', sorted, last, first, 'LIMIT', 0, limit)
  end
  return call('ZRANGEBYLEX', sorted, first, last, 'LIMIT', 0, limit)
end

local operations = {}

-- Read a record; with "all" also its parts, else those with these names, or in a range.
function operations.G(key, all, names, bounds)
  local record = call('HGETALL', key)
  if record[1] == '$b' and #record == 2 then
    drop_marker(key)
  end
  if not (all or names or bounds) or #record == 0 then
    return {record}
  end
  local prefix, name = sub(key, 1, width), sub(key, width + 3)
  local parts = prefix .. 'p:' .. name
  if bounds and bounds[1] == '-' and bounds[2] == '+' then
    -- If these are all parts, no index is needed. The client sorts them.
    all = bounds[3] < 0 or call('HLEN', parts) < bounds[3]
  end
  if all then
    return {record, call('HGETALL', parts)}
  end
  names = names or range(prefix, name, bounds)
  local found = {}
  for n, text in ipairs(#names > 0 and in_pieces('HMGET', parts, names) or EMPTY) do
    if text then
      found[#found + 1] = names[n]
      found[#found + 1] = text
    end
  end
  return {record, found}
end

function operations.C(key, token, seconds, renew)
  local prefix, rest = sub(key, 1, width), sub(key, width + 2)
  local lease = prefix .. 'l' .. rest
  local beside = call('MGET', lease, prefix .. 'm' .. rest)
  local holder, till = timed(beside[1])
  if till > now then
    if holder ~= token then
      return renew and {'LEASE'} or {'TAKEN', exact(till)}
    end
  elseif renew then
    return {'LEASE'}
  end
  keep_timed(lease, token, seconds)
  local memo, memo_till = timed(beside[2])
  return {'', call('HGETALL', key), memo_till > now and memo or false}
end

function operations.R(key, token)
  local lease = sub(key, 1, width) .. 'l' .. sub(key, width + 2)
  if timed(call('GET', lease)) == token then
    call('DEL', lease)
  end
  drop_marker(key)
  return {''}
end

-- Return the size of these parts with their names, in bytes.
local function weights(key, names)
  local sum = 0
  for _, name in ipairs(names) do
    local length = call('HSTRLEN', key, name)
    sum = sum + (length > 0 and length + #name or 0)
  end
  return sum
end

local function remove(key, prefix, name, change, old)
  local version, writer, base = old[2] or '0', old[3] or '', old[4] or ''
  if old[1] then
    unlist(prefix, name, old[6], old[8], old[9])
    call('UNLINK', key, prefix .. 'p:' .. name, prefix .. 'o:' .. name)
    version, writer, base = whole(tonumber(version) + 1), change.write, change.write
    if change.mode == 'delete' then
      call('HSET', key, '$v', version, '$w', writer, '$b', base, '$t', now_text)
      if old[7] then
        call('HSET', key, '$g', old[7])
      end
      call('ZADD', prefix .. 'x', exact(now + DAY), name)
    end
  end
  if change.mode == 'forget' then
    untag(prefix, name, old[7])
    untag(prefix, name, change.tags)
    call('DEL', key, prefix .. 'm:' .. name)
    call('ZREM', prefix .. 'x', name)
    version, writer, base = '0', '', ''
    local _, till = timed(call('GET', prefix .. 'l:' .. name))
    if till > now and not change.token then
      -- While another token holds the record, the base shows that the version it loaded is gone.
      base = change.write
      call('HSET', key, '$b', base)
      call('ZADD', prefix .. 'x', exact(till), name)
    end
  end
  return {'', version, writer, base}
end

-- Return a time after a change: kept, removed (false), or this many seconds from now.
local function new_time(seconds, old)
  if seconds == nil then
    return old
  end
  return seconds and exact(now + seconds)
end

-- Return by how many bytes the parts of a record grow, and the names of those in the range to delete.
local function growth_of_parts(prefix, name, change, exists)
  local key = prefix .. 'p:' .. name
  local named, growth, changed = {}, 0, {}
  for n, part in ipairs(change.parts or EMPTY) do
    growth = growth + #part + #change.part_texts[n]
    named[#named + 1] = part
  end
  for _, part in ipairs(change.gone_parts or EMPTY) do
    named[#named + 1] = part
  end
  if not exists then
    return growth, EMPTY
  end
  growth = growth - weights(key, named)
  if not change.gone_range then
    return growth, EMPTY
  end
  -- A part that is both named and in the range counts once.
  for _, part in ipairs(named) do
    changed[part] = true
  end
  local ranged, others = range(prefix, name, change.gone_range), {}
  for _, part in ipairs(ranged) do
    if not changed[part] then
      others[#others + 1] = part
    end
  end
  return growth - weights(key, others), ranged
end

local function write_parts(prefix, name, change, ranged)
  local key, sorted = prefix .. 'p:' .. name, prefix .. 'o:' .. name
  if #ranged > 0 then
    in_pieces('HDEL', key, ranged)
    in_pieces('ZREM', sorted, ranged)
  end
  local is_sorted = (change.parts or change.gone_parts) and call('EXISTS', sorted) == 1
  for n, part in ipairs(change.parts or EMPTY) do
    call('HSET', key, part, change.part_texts[n])
    if is_sorted then
      call('ZADD', sorted, 0, part)
    end
  end
  for _, part in ipairs(change.gone_parts or EMPTY) do
    call('HDEL', key, part)
    if is_sorted then
      call('ZREM', sorted, part)
    end
  end
end

-- Keep the indexes of deadlines, queues and tags. "old" and "new" are lists: deadline, tags, flow, queue.
local function list_again(prefix, space, member, name, old, new)
  local deadline, tags, flow, queue = unpack(new)
  local old_deadline, old_tags, old_flow, old_queue = unpack(old)
  if deadline ~= old_deadline or (deadline and flow ~= old_flow) then
    if old_deadline and (not deadline or flow ~= old_flow) then
      call('ZREM', flow_deadlines(prefix, space, old_flow), member)
    end
    if deadline then
      call('ZADD', prefix .. 'd:' .. space, deadline, member)
      call('ZADD', flow_deadlines(prefix, space, flow), deadline, member)
    else
      call('ZREM', prefix .. 'd:' .. space, member)
    end
  end
  if queue ~= old_queue then
    if old_queue then
      call('ZREM', prefix .. 'q:' .. space, old_queue .. member)
    end
    if queue then
      call('ZADD', prefix .. 'q:' .. space, 0, queue .. member)
    end
  end
  if tags ~= old_tags then
    untag(prefix, name, old_tags)
    for tag in string.gmatch(tags or '', '([^\n]*)\n') do
      index_add(prefix .. 't:' .. space, tag .. '\n' .. member)
    end
  end
end

local function write_record(key, prefix, name, change, old)
  local alive, base = old[1] and true, old[4]
  local old_expires, old_deadline, old_tags, old_flow, old_queue = old[5], old[6], old[7], old[8], old[9]
  local names, texts, unset = change.names, change.texts, change.unset or EMPTY
  -- An expired record is only hidden: a write by its holder restores it, any other write starts a new one.
  local expired = alive and old_expires and tonumber(old_expires) <= now
  local anew = expired and (change.fresh or not change.token)
  local dropped = anew or change.mode == 'replace'

  local before = tonumber(old[1] or 0)
  local size = dropped and 0 or before
  for n = 1, #names do
    size = size + #names[n] + #texts[n]
  end
  if not dropped then
    for n = 1, #names + #unset do
      local text = old[#SYSTEM + n]
      if text then
        size = size - #text - #(names[n] or unset[n - #names])
      end
    end
  end
  local ranged = EMPTY
  if change.parts or change.gone_parts or change.gone_range then
    local growth
    growth, ranged = growth_of_parts(prefix, name, change, alive and not dropped)
    size = size + growth
  end
  if size > before and size > change.limit then
    return {'LARGE', whole(size)}
  end
  local number = tonumber(old[2] or 0) + 1
  if not alive then
    number = math.max(number, math.floor(now * 1000000))
  end

  -- Nothing below may fail: Redis would keep half of the change.
  local version = whole(number)
  local set, gone = {'$v', version, '$w', change.write, '$t', now_text}, EMPTY
  local function put(field, text)
    set[#set + 1] = field
    set[#set + 1] = text
  end
  -- Set a field that has changed or was dropped; delete a field that no longer has a value.
  local function update(field, new, former)
    if new then
      if dropped or new ~= former then
        put(field, new)
      end
    elseif former and not dropped then
      gone[#gone + 1] = field
    end
  end
  if dropped then
    if not change.head and not anew and alive then
      local head = call('HMGET', key, '$h', '$f', '$s')
      for n, field in ipairs({'$h', '$f', '$s'}) do
        update(field, head[n])
      end
    end
    call('UNLINK', key, prefix .. 'p:' .. name, prefix .. 'o:' .. name)
    base = change.write
    put('$b', base)
  else
    gone = {unpack(unset)}
  end
  if dropped or size ~= before or not alive then
    put('$z', whole(size))
  end
  local expires, deadline, tags, flow, queue = old_expires, old_deadline, old_tags, old_flow, old_queue
  if anew then
    expires, deadline, tags, flow, queue = false, false, false, false, false
  elseif expired then
    expires = false
  end
  expires, deadline = new_time(change.expiry, expires), new_time(change.deadline, deadline)
  if change.tags then
    tags = change.tags ~= '' and change.tags
  end
  if change.queue ~= nil then
    queue = change.queue and change.queue .. format('%014x', math.floor(now * 1000000))
  end
  update('$e', expires, old_expires)
  update('$d', deadline, old_deadline)
  update('$g', tags, old_tags)
  update('$q', queue, old_queue)
  if change.head then
    flow = change.flow or false
    put('$h', change.head)
    update('$f', change.flow, alive)
    update('$s', change.state, alive)
  end
  for n = 1, #names do
    put(names[n], texts[n])
  end
  in_pieces('HSET', key, set)
  if #gone > 0 then
    in_pieces('HDEL', key, gone)
  end
  if change.parts or change.gone_parts or #ranged > 0 then
    write_parts(prefix, name, change, ranged)
  end

  if expires then
    if expires ~= old_expires or not alive then
      call('ZADD', prefix .. 'x', expires, name)
    end
  elseif old_expires or not alive then
    call('ZREM', prefix .. 'x', name)
  end
  local is_listed = alive and deadline == old_deadline and tags == old_tags and flow == old_flow and queue == old_queue
  if not is_listed then
    local space, member = split(name)
    if not alive then
      index_add(prefix .. 'k:' .. space, member)
      call('SADD', prefix .. 's', space)
    end
    list_again(
      prefix, space, member, name, {old_deadline, old_tags, old_flow, old_queue}, {deadline, tags, flow, queue}
    )
  end
  return {'', version, change.write, base or ''}
end

-- Whether another program has overwritten the numbers of a record.
local function damaged(old)
  return old[1] and not tonumber(old[1])
    or old[2] and not tonumber(old[2])
    or old[5] and not tonumber(old[5])
    or old[6] and not tonumber(old[6])
end

-- Read a record for a write that drops its data, so the key may even hold something that is not a record.
local function read_to_drop(key)
  local fine, old = pcall(read, key, EMPTY, EMPTY)
  if not fine then
    if not find(text_of(old), 'WRONGTYPE', 1, true) then
      error(old, 0)
    end
    call('DEL', key)
    return {false, false, false, false, false, false, false, false, false}
  end
  if damaged(old) then
    for _, n in ipairs({1, 2, 5, 6}) do
      old[n] = old[n] and (tonumber(old[n]) and old[n] or '0')
    end
  end
  return old
end

-- Write one change, which is a table. A missing value means: no condition, or unchanged.
--   write  its id    mode  merge, replace, delete, forget    limit  of the size
--   token base version writer absent  conditions    keep  extend the lease by these seconds, instead of ending it
--   names texts  fields to set    unset  names    head flow state  memo  tags    fresh  see write_record
--   deadline expiry  seconds from now, false: none    queue  name and priority, false: none
--   parts part_texts  to set    gone_parts  names    gone_range  see range
function operations.A(key, change)
  local prefix, name = sub(key, 1, width), sub(key, width + 3)
  local lease, token = prefix .. 'l:' .. name, change.token
  if token then
    local holder, till = timed(call('GET', lease))
    if till <= now or holder ~= token then
      return {'LEASE'}
    end
  end
  local old
  if change.mode == 'merge' then
    old = read(key, change.names, change.unset or EMPTY)
    if damaged(old) then
      return {'DAMAGED'}
    end
  else
    old = read_to_drop(key)
  end
  local exists = old[1] and not (old[5] and tonumber(old[5]) <= now)
  if change.base and change.base ~= (old[4] or '') then
    return {'BASE'}
  elseif change.version and not (exists and change.version == old[2] and change.writer == old[3]) then
    return {'VERSION'}
  elseif change.absent and exists then
    return {'EXISTS'}
  end
  local result
  if change.mode == 'delete' or change.mode == 'forget' then
    result = remove(key, prefix, name, change, old)
  else
    result = write_record(key, prefix, name, change, old)
    if result[1] ~= '' then
      return result
    end
  end
  if change.memo and change.mode ~= 'forget' then
    keep_timed(prefix .. 'm:' .. name, change.memo, DAY)
  end
  if token then
    if change.keep then
      keep_timed(lease, token, change.keep)
    else
      call('DEL', lease)
    end
  end
  return result
end

-- The journal begins with the number of its batch in sixteen digits.
local DIGITS = 16
-- Seconds for which a journal and a fence are kept. The same number as in lane.py.
local JOURNAL_LIFE = 600
local lane, journal_number, fence = ARGV[3], ARGV[4], ARGV[5]

-- Return the results of one group, or the text of an error if none of its operations was run.
local function run(use, tag, group)
  local prefix, is_journal = prefix_of(tag), use == 'journal'
  local number = is_journal and journal_number or fence
  local journal_key = prefix .. 'j:' .. lane .. (is_journal and '' or '-')
  -- The key that is never written checks the slot. Journals are short.
  local text = call('MGET', journal_key, prefix .. '-')[1]
  local kept
  if number > 0 then
    local before = text and tonumber(sub(text, 1, DIGITS)) or 0
    if before > number then
      return is_journal and 'STALE a later batch of this lane was already applied'
        or 'FENCED these claims were already sent again'
    elseif use == 'raise' then
      -- A server that refuses writes refuses late claims too, until it accepts writes again. The client raises the fence
      -- again until a claim is granted.
      redis.pcall('SET', journal_key, format('%016d', number), 'EX', JOURNAL_LIFE)
    elseif is_journal and before == number then
      -- The batch was applied, but its answer was lost. Renewing the TTL is a write that WAIT can wait for.
      kept = cmsgpack.unpack(sub(text, DIGITS + 1))
      call('EXPIRE', journal_key, JOURNAL_LIFE)
    end
  end

  -- The journal has the results of writes. Records are not kept: a repeated batch reads them again.
  local journal, results = {}, {}
  for n, operation in ipairs(group) do
    local letter, key = operation[1], operation[2]
    local writes = letter == 'A'
    local made, result
    if kept and writes then
      result = kept[#journal + 1]
    else
      made, result = pcall(operations[letter], unpack(operation, 2))
      if not made then
        result = {'ERROR', text_of(result)}
      end
    end
    if writes then
      journal[#journal + 1] = result
      if result[2] == '0' or result[1] ~= '' then
        -- Nothing was written.
        drop_marker(key)
      elseif operation[3].returning then
        result = {result[1], result[2], result[3], result[4], call('HGETALL', key)}
      end
    end
    results[n] = result
  end
  if number > 0 and is_journal and not kept then
    -- This fails only if every write of this batch did, and then there is nothing to keep.
    redis.pcall('SET', journal_key, format('%016d', number) .. cmsgpack.pack(journal), 'EX', JOURNAL_LIFE)
  end
  return results
end

local answers = {now_text}
for n, group in ipairs(ARGV[6]) do
  local made, answer = pcall(run, unpack(group))
  answers[n + 1] = made and answer or text_of(answer)
end
return answers
