-- Run one batch. Each operation succeeds or fails by itself.
--
-- KEYS: "-", the journal, then the record of each operation. All have one hash tag.
-- ARGV: now, width, and the other arguments as one msgpack array: the number of the batch (0: none), how to use the
-- journal, then for each operation its letter, the number of arguments that follow, and these. Returns now and a result
-- for each operation.
--
-- A call for several hash tags of one node has no KEYS. Its other arguments: the lane, the number of the batch for its
-- journals, that for its fences, then for each hash tag how to use the journal, the number of operations, their records, and
-- the operations as above. Returns now and a result for each operation. Each hash tag succeeds or fails by itself: if it
-- fails, its results are the text of an error.
--
-- The journal of writes ("journal") keeps the number and the results of the last batch: the same number returns the
-- kept results, a lower number is refused. Claims have a fence instead, which is only a number: a batch with a lower
-- number is refused ("check"). The first batch after an unanswered one also raises the fence to its number ("raise").

-- A batch has hundreds of arguments. Packed into one they cost the client and the server less.
local ARGV = cmsgpack.unpack(ARGV[3])

local function in_pieces(command, key, list, size)
  if size <= MOST then
    return call(command, key, unpack(list, 1, size))
  end
  for first = 1, size, MOST do
    call(command, key, unpack(list, first, math.min(first + MOST - 1, size)))
  end
end

-- Fields of a record besides its data: size, version, write id, base, expiry, deadline, tags, flow, queue. A missing one
-- is false.
local SYSTEM = 9

-- Return these fields, then the data fields named by ARGV[first] to ARGV[last], then those of the list "more".
local function read(key, first, last, more)
  if last - first < MOST and #more == 0 then
    return call('HMGET', key, '$z', '$v', '$w', '$b', '$e', '$d', '$g', '$f', '$q', unpack(ARGV, first, last))
  end
  local found = call('HMGET', key, '$z', '$v', '$w', '$b', '$e', '$d', '$g', '$f', '$q')
  local function add(list, from, till)
    for at = from, till, MOST do
      for _, text in ipairs(call('HMGET', key, unpack(list, at, math.min(at + MOST - 1, till)))) do
        found[#found + 1] = text
      end
    end
  end
  add(ARGV, first, last)
  add(more, 1, #more)
  return found
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
-- "1" for the reverse order.
local function range(prefix, name, first, last, limit, reverse)
  local sorted, parts = prefix .. 'o:' .. name, prefix .. 'p:' .. name
  if call('EXISTS', sorted) == 0 then
    local entries = {}
    for at, part in ipairs(call('HKEYS', parts)) do
      entries[2 * at - 1], entries[2 * at] = 0, part
    end
    if #entries > 0 then
      in_pieces('ZADD', sorted, entries, #entries)
    end
  end
  if reverse == '1' then
    return call('ZREVRANGEBYLEX', sorted, last, first, 'LIMIT', 0, limit)
  end
  return call('ZRANGEBYLEX', sorted, first, last, 'LIMIT', 0, limit)
end

-- Return names and texts of the parts with these names.
local function chosen_parts(key, names, first, last)
  local found = {}
  for at = first, last, MOST do
    local till = math.min(at + MOST - 1, last)
    local texts = call('HMGET', key, unpack(names, at, till))
    for n = at, till do
      local text = texts[n - at + 1]
      if text then
        found[#found + 1] = names[n]
        found[#found + 1] = text
      end
    end
  end
  return found
end

local operations = {}

-- Read a record. An argument "1" requests all parts, "r" and four arguments a range, "n" and names these parts.
function operations.G(key, at, last)
  local record = call('HGETALL', key)
  if record[1] == '$b' and #record == 2 then
    drop_marker(key)
  end
  local wanted = ARGV[at]
  if wanted == '' or #record == 0 then
    return {record}
  end
  local prefix, name = sub(key, 1, width), sub(key, width + 3)
  local parts = prefix .. 'p:' .. name
  if wanted == '1' then
    return {record, call('HGETALL', parts)}
  elseif wanted == 'n' then
    return {record, chosen_parts(parts, ARGV, at + 1, last)}
  end
  local first, till, limit = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  if first == '-' and till == '+' and (limit == '-1' or call('HLEN', parts) < tonumber(limit)) then
    -- These are all parts, so no index is needed. The client sorts them.
    return {record, call('HGETALL', parts)}
  end
  local names = range(prefix, name, first, till, limit, ARGV[at + 4])
  return {record, chosen_parts(parts, names, 1, #names)}
end

-- "held" and "remembered" are the texts of lease and memo, if they were read already.
function operations.C(key, at, _, held, remembered)
  local prefix, rest = sub(key, 1, width), sub(key, width + 2)
  local token, renew = ARGV[at], ARGV[at + 2] == '1'
  local lease = prefix .. 'l' .. rest
  if held == nil then
    held, remembered = unpack(call('MGET', lease, prefix .. 'm' .. rest))
  end
  local holder, till = timed(held)
  if till > now then
    if holder ~= token then
      return renew and {'LEASE'} or {'TAKEN', exact(till)}
    end
  elseif renew then
    return {'LEASE'}
  end
  keep_timed(lease, token, ARGV[at + 1])
  local memo, memo_till = timed(remembered)
  return {'', call('HGETALL', key), memo_till > now and memo or false}
end

function operations.R(key, at)
  local lease = sub(key, 1, width) .. 'l' .. sub(key, width + 2)
  if timed(call('GET', lease)) == ARGV[at] then
    call('DEL', lease)
  end
  drop_marker(key)
  return {''}
end

-- Return the size of these parts with their names, in bytes.
local function weights(key, names)
  local sum = 0
  for n = 1, #names do
    local length = call('HSTRLEN', key, names[n])
    sum = sum + (length > 0 and length + #names[n] or 0)
  end
  return sum
end

local function remove(key, prefix, name, mode, write, held, lease, old, found_by)
  local version, writer, base = old[2] or '0', old[3] or '', old[4] or ''
  if old[1] then
    local next_version = whole(tonumber(version) + 1)
    unlist(prefix, name, old[6], old[8], old[9])
    call('UNLINK', key, prefix .. 'p:' .. name, prefix .. 'o:' .. name)
    version, writer, base = next_version, write, write
    if mode == 'delete' then
      call('HSET', key, '$v', version, '$w', writer, '$b', base, '$t', now_text)
      if old[7] then
        call('HSET', key, '$g', old[7])
      end
      call('ZADD', prefix .. 'x', exact(now + DAY), name)
    end
  end
  if mode == 'forget' then
    untag(prefix, name, old[7])
    untag(prefix, name, found_by)
    call('DEL', key, prefix .. 'm:' .. name)
    call('ZREM', prefix .. 'x', name)
    version, writer, base = '0', '', ''
    local _, till = timed(call('GET', lease))
    if till > now and not held then
      -- While another token holds the record, the base shows that the version it loaded is gone.
      base = write
      call('HSET', key, '$b', base)
      call('ZADD', prefix .. 'x', exact(till), name)
    end
  end
  return {'', version, writer, base}
end

-- The positions of the arguments of an Apply. The names of the fields to set, their texts, and the options follow.
local MODE, WRITE, TOKEN, BASE, LIMIT, SETS, NAMES = 0, 1, 2, 3, 4, 5, 6

-- Options: a letter and an argument each. Most changes have none or few.
--   n w  the required version    b  there is no record    o  queue: "-" none, or name and priority
--   k  keep the lease for this many seconds    f  fresh    r  return the record
--   d e  deadline and expiry: "-" none, or seconds from now     m  memo    g  tags    h a s  head, its flow, its state
--   u  unset this field    p t  set this part to this text     q  delete this part
--   l  four times: delete the parts of a range
local LISTS = {u = true, p = true, t = true, q = true, l = true}
local EMPTY = {}
local NONE = {u = EMPTY, p = EMPTY, t = EMPTY, q = EMPTY, l = EMPTY}

local function options(first, last)
  if first > last then
    return NONE
  end
  local given = {u = EMPTY, p = EMPTY, t = EMPTY, q = EMPTY, l = EMPTY}
  for at = first, last, 2 do
    local letter = ARGV[at]
    if LISTS[letter] then
      local list = given[letter]
      if list == EMPTY then
        list = {}
        given[letter] = list
      end
      list[#list + 1] = ARGV[at + 1]
    else
      given[letter] = ARGV[at + 1]
    end
  end
  return given
end

-- Return a time after a change: kept, removed ("-"), or this many seconds from now.
local function new_time(argument, old)
  if not argument then
    return old
  elseif argument == '-' then
    return false
  end
  return exact(now + tonumber(argument))
end

-- The arguments of one HSET and one HDEL. All operations reuse the two lists, because growing new ones is slow.
local set, gone = {}, {}
local set_size, gone_size = 0, 0

local function put(field, text)
  set[set_size + 1] = field
  set[set_size + 2] = text
  set_size = set_size + 2
end

-- Set a field that has changed or was dropped; delete a field that no longer has a value.
local function update_field(field, new, old, dropped)
  if new then
    if dropped or new ~= old then
      put(field, new)
    end
  elseif old and not dropped then
    gone_size = gone_size + 1
    gone[gone_size] = field
  end
end

local function write_record(key, prefix, name, at, given, held, old)
  local alive, version, base, expires, deadline, tags = old[1] and true, old[2], old[4], old[5], old[6], old[7]
  local flow, queue = old[8], old[9]
  local write, sets = ARGV[at + WRITE], ARGV[at + SETS]
  local unset, parts, texts, unparts = given.u, given.p, given.t, given.q
  -- An expired record is only hidden: a write by its holder restores it, any other write starts a new one.
  local expired = alive and expires and tonumber(expires) <= now
  local anew = expired and (given.f or not held)
  local dropped = anew or ARGV[at + MODE] == 'replace'

  local before = tonumber(old[1] or 0)
  local size = dropped and 0 or before
  local first = at + NAMES
  for n = first, first + sets - 1 do
    size = size + #ARGV[n] + #ARGV[n + sets]
  end
  if not dropped then
    for n = 1, sets + #unset do
      local text = old[SYSTEM + n]
      if text then
        size = size - #text - #(n <= sets and ARGV[first + n - 1] or unset[n - sets])
      end
    end
  end
  for n = 1, #parts do
    size = size + #parts[n] + #texts[n]
  end
  local its_parts, sorted
  if #parts + #unparts + #given.l > 0 then
    its_parts, sorted = prefix .. 'p:' .. name, prefix .. 'o:' .. name
  end
  local gone_parts = EMPTY
  if alive and not dropped then
    if #parts + #unparts > 0 then
      size = size - weights(its_parts, parts) - weights(its_parts, unparts)
    end
    if #given.l > 0 then
      gone_parts = range(prefix, name, unpack(given.l))
      -- The size of a part that is both in the range and set or deleted was subtracted above.
      local seen = {}
      for n = 1, #parts do
        seen[parts[n]] = true
      end
      for n = 1, #unparts do
        seen[unparts[n]] = true
      end
      local others = {}
      for n = 1, #gone_parts do
        if not seen[gone_parts[n]] then
          others[#others + 1] = gone_parts[n]
        end
      end
      size = size - weights(its_parts, others)
    end
  end
  if size > before and size > tonumber(ARGV[at + LIMIT]) then
    return {'LARGE', whole(size)}
  end
  local number = tonumber(version or 0) + 1
  if not alive then
    number = math.max(number, math.floor(now * 1000000))
  end

  -- Nothing below may fail: Redis would keep half of the change.
  local version_text = whole(number)
  set_size, gone_size = 0, 0
  put('$v', version_text)
  put('$w', write)
  put('$t', now_text)
  if dropped then
    if not given.h and not anew and alive then
      local head = call('HMGET', key, '$h', '$f', '$s')
      for n, field in ipairs({'$h', '$f', '$s'}) do
        if head[n] then
          put(field, head[n])
        end
      end
    end
    call('UNLINK', key, prefix .. 'p:' .. name, prefix .. 'o:' .. name)
    base = write
    put('$b', base)
  else
    gone_size = #unset
    for n = 1, gone_size do
      gone[n] = unset[n]
    end
  end
  if dropped or size ~= before or not alive then
    put('$z', whole(size))
  end
  local old_expires, old_deadline, old_tags, old_flow, old_queue = expires, deadline, tags, flow, queue
  if anew then
    expires, deadline, tags, flow, queue = false, false, false, false, false
  end
  if expired and not anew and not given.e then
    expires = false
  else
    expires = new_time(given.e, expires)
  end
  deadline = new_time(given.d, deadline)
  if given.g then
    tags = given.g ~= '' and given.g
  end
  if expires or old_expires then
    update_field('$e', expires, old_expires, dropped)
  end
  if deadline or old_deadline then
    update_field('$d', deadline, old_deadline, dropped)
  end
  if tags or old_tags then
    update_field('$g', tags, old_tags, dropped)
  end
  if given.o then
    queue = given.o ~= '-' and given.o .. format('%014x', math.floor(now * 1000000))
  end
  if queue or old_queue then
    update_field('$q', queue, old_queue, dropped)
  end
  if given.h then
    flow = given.a or false
    put('$h', given.h)
    update_field('$f', given.a, alive, dropped)
    update_field('$s', given.s, alive, dropped)
  end
  for n = first, first + sets - 1 do
    put(ARGV[n], ARGV[n + sets])
  end
  in_pieces('HSET', key, set, set_size)
  if gone_size > 0 then
    in_pieces('HDEL', key, gone, gone_size)
  end
  if #gone_parts > 0 then
    in_pieces('HDEL', its_parts, gone_parts, #gone_parts)
    in_pieces('ZREM', sorted, gone_parts, #gone_parts)
  end
  for n = 1, #parts do
    call('HSET', its_parts, parts[n], texts[n])
  end
  for n = 1, #unparts do
    call('HDEL', its_parts, unparts[n])
  end
  if #parts + #unparts > 0 and call('EXISTS', sorted) == 1 then
    for n = 1, #parts do
      call('ZADD', sorted, 0, parts[n])
    end
    for n = 1, #unparts do
      call('ZREM', sorted, unparts[n])
    end
  end

  if expires then
    if expires ~= old_expires or not alive then
      call('ZADD', prefix .. 'x', expires, name)
    end
  elseif old_expires or not alive then
    call('ZREM', prefix .. 'x', name)
  end
  local moved = deadline ~= old_deadline or (deadline and flow ~= old_flow)
  if not alive or moved or tags ~= old_tags or queue ~= old_queue then
    local space, member = split(name)
    if not alive then
      index_add(prefix .. 'k:' .. space, member)
      call('SADD', prefix .. 's', space)
    end
    if moved then
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
  return {'', version_text, write, base or ''}
end

-- Whether another program has overwritten the numbers of a record.
local function damaged(old)
  return old[1] and not tonumber(old[1])
    or old[2] and not tonumber(old[2])
    or old[5] and not tonumber(old[5])
    or old[6] and not tonumber(old[6])
end

-- Replace the damaged numbers of a record for a write that drops its data.
local function repaired(key, old)
  if not old then
    call('DEL', key)
    return {false, false, false, false, false, false, false, false, false}
  end
  for _, n in ipairs({1, 2, 5, 6}) do
    old[n] = old[n] and (tonumber(old[n]) and old[n] or '0')
  end
  return old
end

-- "leased" is the text of the lease, if it was read already.
function operations.A(key, at, last, leased)
  local prefix, name = sub(key, 1, width), sub(key, width + 3)
  local mode, token, base = ARGV[at + MODE], ARGV[at + TOKEN], ARGV[at + BASE]
  local named = at + NAMES + ARGV[at + SETS]
  local given = options(2 * named - at - NAMES, last)
  local held = token ~= ''
  local lease = prefix .. 'l:' .. name
  if held then
    if leased == nil then
      leased = call('GET', lease)
    end
    local holder, till = timed(leased)
    if till <= now or holder ~= token then
      return {'LEASE'}
    end
  end
  local old
  if mode == 'merge' then
    old = read(key, at + NAMES, named - 1, given.u)
    if damaged(old) then
      return {'DAMAGED'}
    end
  else
    -- This write drops the data, so the key may even hold something that is not a record.
    local fine, found = pcall(read, key, 1, 0, EMPTY)
    if not fine and not find(type(found) == 'table' and found.err or found, 'WRONGTYPE', 1, true) then
      error(found, 0)
    end
    old = fine and found
    if not old or damaged(old) then
      old = repaired(key, old)
    end
  end
  if base ~= '-' and base ~= '=' .. (old[4] or '') then
    return {'BASE'}
  end
  if given.n then
    local there = old[1] and not (old[5] and tonumber(old[5]) <= now)
    if not there or given.n ~= old[2] or given.w ~= old[3] then
      return {'VERSION'}
    end
  end
  if given.b and old[1] and not (old[5] and tonumber(old[5]) <= now) then
    return {'EXISTS'}
  end
  local result
  if mode == 'delete' or mode == 'forget' then
    result = remove(key, prefix, name, mode, ARGV[at + WRITE], held, lease, old, given.g)
  else
    result = write_record(key, prefix, name, at, given, held, old)
    if result[1] ~= '' then
      return result
    end
  end
  if given.m and mode ~= 'forget' then
    keep_timed(prefix .. 'm:' .. name, given.m, DAY)
  end
  if held then
    if given.k then
      keep_timed(lease, token, given.k)
    else
      call('DEL', lease)
    end
  end
  return result, given.r
end

-- The journal begins with the number of its batch in sixteen digits.
local DIGITS = 16
-- Seconds for which a journal and a fence are kept. The same number as in lane.py.
local JOURNAL_LIFE = 600

-- Run "count" operations of one hash tag: their records are names[first] and the following, their arguments begin at
-- ARGV[at]. Put the results into the list "results" after its first "filled". Return the position after the arguments, or
-- the text of an error if none was run. "never" is the key that is never written.
local function run(never, journal_key, use, number, names, first, count, at, results, filled)
  -- A call for several hash tags names no keys to the server. So this is where their slot is checked, by the key that
  -- never exists. Journals are short.
  local text, lease, memo
  if count == 1 then
    -- Lease and memo of a single record are read by the same command.
    local prefix, rest = sub(names[first], 1, width), sub(names[first], width + 2)
    local found = call('MGET', journal_key, never, prefix .. 'l' .. rest, prefix .. 'm' .. rest)
    text, lease, memo = found[1], found[3], found[4]
  else
    text = call('MGET', journal_key, never)[1]
  end
  local kept
  if number > 0 then
    local before = text and tonumber(sub(text, 1, DIGITS)) or 0
    if before > number then
      return use == 'journal' and 'STALE a later batch of this lane was already applied'
        or 'FENCED these claims were already sent again'
    elseif use == 'raise' then
      -- A server that refuses writes refuses late claims too, until it accepts writes again. The client raises the fence
      -- again until a claim is granted.
      redis.pcall('SET', journal_key, format('%016d', number), 'EX', JOURNAL_LIFE)
    elseif use == 'journal' and before == number then
      -- The batch was applied, but its answer was lost. Renewing the TTL is a write that WAIT can wait for.
      kept = cmsgpack.unpack(sub(text, DIGITS + 1))
      call('EXPIRE', journal_key, JOURNAL_LIFE)
    end
  end

  -- Four texts for each Apply. Records are not kept: a repeated batch reads them again.
  local journal, size = {}, 0
  for n = 0, count - 1 do
    local key, letter = names[first + n], ARGV[at]
    local from, next_one = at + 2, at + 2 + ARGV[at + 1]
    local made, result, returning
    if kept and letter == 'A' then
      result = {kept[size + 1], kept[size + 2], kept[size + 3], kept[size + 4]}
      returning = options(from + NAMES + 2 * ARGV[from + SETS], next_one - 1).r
    else
      made, result, returning = pcall(operations[letter], key, from, next_one - 1, lease, memo)
      if not made then
        result = {'ERROR', type(result) == 'table' and result.err or tostring(result)}
      end
    end
    if letter == 'A' then
      if result[2] == '0' or result[1] ~= '' then
        -- Nothing was written.
        drop_marker(key)
      end
      journal[size + 1] = result[1]
      journal[size + 2] = result[2] or ''
      journal[size + 3] = result[3] or ''
      journal[size + 4] = result[4] or ''
      size = size + 4
      if returning and result[1] == '' then
        result[5] = call('HGETALL', key)
      end
    end
    results[filled + n + 1] = result
    at = next_one
  end
  if number > 0 and use == 'journal' and not kept then
    -- This fails only if every write of this batch did, and then there is nothing to keep.
    redis.pcall('SET', journal_key, format('%016d', number) .. cmsgpack.pack(journal), 'EX', JOURNAL_LIFE)
  end
  return at
end

local results = {now_text}
if #KEYS > 0 then
  local done = run(KEYS[1], KEYS[2], ARGV[2], ARGV[1], KEYS, 3, #KEYS - 2, 3, results, 1)
  return type(done) == 'string' and redis.error_reply(done) or results
end

local lane, number, fence = ARGV[1], ARGV[2], ARGV[3]
local filled, at, size = 1, 4, #ARGV
while at < size do
  local use, count, first = ARGV[at], ARGV[at + 1], at + 2
  local prefix = sub(ARGV[first], 1, width)
  local is_journal = use == 'journal'
  local journal_key = prefix .. 'j:' .. lane .. (is_journal and '' or '-')
  at = first + count
  local made, done = pcall(
    run, prefix .. '-', journal_key, use, is_journal and number or fence, ARGV, first, count, at, results, filled
  )
  if not made then
    -- Usually its slot is on another node or moves there. It is sent again alone, and the answer shows the cause.
    done = type(done) == 'table' and done.err or tostring(done)
  end
  if type(done) == 'string' then
    for n = 1, count do
      results[filled + n] = done
      at = at + 2 + ARGV[at + 1]
    end
  else
    at = done
  end
  filled = filled + count
end
return results
