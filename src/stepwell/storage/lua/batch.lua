-- One batch: each operation is made or refused by itself.
--
-- KEYS: "-", the journal, then the record of each operation.
-- ARGV: now, width, the number of the batch in its lane ("0": no journal), then for each operation its
-- letter, how many arguments follow, and these. Gives now and a result for each operation.

local SYSTEM = {'$z', '$v', '$w', '$b', '$t', '$e', '$d', '$g'}

local function in_pieces(command, key, list, from)
  for first = from or 1, #list, MOST do
    redis.call(command, key, unpack(list, first, math.min(first + MOST - 1, #list)))
  end
end

-- The system fields and these data fields: a missing one is false.
local function read(key, names)
  local wanted = {unpack(SYSTEM)}
  for n = 1, math.min(#names, MOST) do
    wanted[#SYSTEM + n] = names[n]
  end
  local found = redis.call('HMGET', key, unpack(wanted))
  for first = MOST + 1, #names, MOST do
    local more = redis.call('HMGET', key, unpack(names, first, math.min(first + MOST - 1, #names)))
    for n = 1, #more do
      found[#SYSTEM + first - 1 + n] = more[n]
    end
  end
  return found
end

local operations = {}

function operations.G(key, at)
  if ARGV[at] == '1' then
    return {redis.call('HGETALL', key), redis.call('HGETALL', string.sub(key, 1, width) .. 'p' .. string.sub(key, width + 2))}
  end
  return {redis.call('HGETALL', key)}
end

function operations.C(key, at)
  local prefix, name = string.sub(key, 1, width), string.sub(key, width + 3)
  local token, seconds, renew = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2] == '1'
  local taken, holder, till = leased(prefix, name)
  if taken then
    if holder ~= token then
      return renew and {'LEASE'} or {'TAKEN', exact(till)}
    end
  elseif renew then
    return {'LEASE'}
  end
  keep_timed(prefix .. 'l:' .. name, token, seconds)
  local memo, memo_till = timed(prefix .. 'm:' .. name)
  return {'', redis.call('HGETALL', key), memo and memo_till > now and memo or false}
end

function operations.R(key, at)
  local prefix, name = string.sub(key, 1, width), string.sub(key, width + 3)
  local _, holder = leased(prefix, name)
  if holder == ARGV[at] then
    redis.call('DEL', prefix .. 'l:' .. name)
  end
  return {''}
end

-- How many bytes a part takes with its name.
local function part_weight(key, name)
  local length = redis.call('HSTRLEN', key, name)
  return length > 0 and length + #name or 0
end

local function remove(key, prefix, name, mode, write, old)
  local version, writer, base = old[2] or '0', old[3] or '', old[4] or ''
  if old[1] then
    local next_version = whole(tonumber(version) + 1)
    unlist(prefix, name, old[8], old[7])
    redis.call('DEL', key, prefix .. 'p:' .. name)
    version, writer, base = next_version, write, write
    if mode == 'delete' then
      redis.call('HSET', key, '$v', version, '$w', writer, '$b', base, '$t', exact(now))
      redis.call('ZADD', prefix .. 'x', exact(now + DAY), name)
    end
  end
  if mode == 'forget' then
    redis.call('DEL', key, prefix .. 'm:' .. name)
    redis.call('ZREM', prefix .. 'x', name)
    version, writer, base = '0', '', ''
  end
  return {'', version, writer, base}
end

-- Arguments of an Apply, by their place.
local MODE, WRITE, TOKEN, BASE, NUMBER, WRITER, LEASE, FRESH, LIMIT, DEADLINE, EXPIRY, MEMO, TAGS, FLOW, STATE, HEAD,
  RETURNING, SETS, UNSETS, PARTS, UNPARTS = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20
local FIRST = 21

-- What a change makes of a time: kept, taken away, or so many seconds from now.
local function moved(argument, old)
  if argument == '' then
    return old
  elseif argument == '-' then
    return false
  end
  return exact(now + tonumber(argument))
end

local function write_record(key, prefix, name, at, names, held, old)
  local alive, version, base, expires, deadline, tags = old[1] and true, old[2], old[4], old[6], old[7], old[8]
  local sets, unsets = tonumber(ARGV[at + SETS]), tonumber(ARGV[at + UNSETS])
  local parts, unparts = tonumber(ARGV[at + PARTS]), tonumber(ARGV[at + UNPARTS])
  local write = ARGV[at + WRITE]
  local part_key = prefix .. 'p:' .. name
  local expired = alive and expires and tonumber(expires) <= now
  -- An expired record is only hidden: its holder brings it back, anybody else starts anew.
  local anew = expired and (ARGV[at + FRESH] == '1' or not held)
  local dropped = anew or ARGV[at + MODE] == 'replace'

  local texts = at + FIRST + sets + unsets
  local part_names = texts + sets
  local part_texts = part_names + parts + unparts
  local before = tonumber(old[1] or 0)
  local size = dropped and 0 or before
  for n = 1, sets do
    size = size + #names[n] + #ARGV[texts + n - 1]
  end
  if not dropped then
    for n = 1, sets + unsets do
      local text = old[#SYSTEM + n]
      if text then
        size = size - #names[n] - #text
      end
    end
  end
  for n = 0, parts + unparts - 1 do
    local part = ARGV[part_names + n]
    if n < parts then
      size = size + #part + #ARGV[part_texts + n]
    end
    if not dropped and alive then
      size = size - part_weight(part_key, part)
    end
  end
  if size > tonumber(ARGV[at + LIMIT]) and size > before then
    return {'LARGE', whole(size)}
  end
  local number = tonumber(version or 0) + 1
  if not alive then
    number = math.max(number, math.floor(now * 1000000))
  end

  -- From here on nothing can fail: half a change would stay.
  local set = {}
  local function put(field, text)
    set[#set + 1] = field
    set[#set + 1] = text
  end
  local gone = {}
  if dropped then
    if ARGV[at + HEAD] == '' and not anew and alive then
      local head = redis.call('HMGET', key, '$h', '$f', '$s')
      for n, field in ipairs({'$h', '$f', '$s'}) do
        if head[n] then
          put(field, head[n])
        end
      end
    end
    redis.call('DEL', key, part_key)
    base = write
  else
    for n = sets + 1, sets + unsets do
      gone[#gone + 1] = names[n]
    end
  end
  local old_expires, old_deadline, old_tags = expires, deadline, tags
  if anew then
    expires, deadline, tags = false, false, false
  end
  deadline = moved(ARGV[at + DEADLINE], deadline)
  if ARGV[at + EXPIRY] == '' and held and expires and tonumber(expires) <= now then
    expires = false
  else
    expires = moved(ARGV[at + EXPIRY], expires)
  end
  if ARGV[at + TAGS] ~= '-' then
    tags = string.sub(ARGV[at + TAGS], 2)
    if tags == '' then
      tags = false
    end
  end

  put('$z', whole(size))
  put('$v', whole(number))
  put('$w', write)
  put('$t', exact(now))
  if base then
    put('$b', base)
  end
  -- What is new, or was dropped with the rest, is written; what went away is taken out.
  local function settle(field, new, before_it)
    if new and (dropped or new ~= before_it) then
      put(field, new)
    elseif not new and before_it and not dropped then
      gone[#gone + 1] = field
    end
  end
  settle('$e', expires, old_expires)
  settle('$d', deadline, old_deadline)
  settle('$g', tags, old_tags)
  if ARGV[at + HEAD] ~= '' then
    put('$h', ARGV[at + HEAD])
    for field, name_at in pairs({['$f'] = FLOW, ['$s'] = STATE}) do
      local text = ARGV[at + name_at]
      if text ~= '-' then
        put(field, string.sub(text, 2))
      elseif alive and not dropped then
        gone[#gone + 1] = field
      end
    end
  end
  for n = 1, sets do
    put(names[n], ARGV[texts + n - 1])
  end
  in_pieces('HSET', key, set)
  in_pieces('HDEL', key, gone)
  for n = 0, parts - 1 do
    redis.call('HSET', part_key, ARGV[part_names + n], ARGV[part_texts + n])
  end
  for n = parts, parts + unparts - 1 do
    redis.call('HDEL', part_key, ARGV[part_names + n])
  end

  if expires then
    if expires ~= old_expires or not alive then
      redis.call('ZADD', prefix .. 'x', expires, name)
    end
  elseif old_expires or (version and not alive) then
    redis.call('ZREM', prefix .. 'x', name)
  end
  if not alive or deadline ~= old_deadline or tags ~= old_tags then
    local space, member = split(name)
    if not alive then
      redis.call('ZADD', prefix .. 'n:' .. space, 0, member)
    end
    if deadline ~= old_deadline then
      if deadline then
        redis.call('ZADD', prefix .. 'd:' .. space, deadline, member)
      else
        redis.call('ZREM', prefix .. 'd:' .. space, member)
      end
    end
    if tags ~= old_tags then
      forget_tags(prefix, space, member, old_tags or '')
      for tag in string.gmatch(tags or '', '([^\n]*)\n') do
        redis.call('ZADD', prefix .. 'g:' .. space .. '/' .. tag, 0, member)
      end
    end
  end
  return {'', whole(number), write, base or ''}
end

-- The record's own fields as they are needed, or nothing if somebody else wrote over them. What drops the
-- record anyway may go on.
local function load(key, names, drops)
  local fine, old = pcall(read, key, names)
  if not fine then
    local why = type(old) == 'table' and old.err or tostring(old)
    if not drops or not string.find(why, 'WRONGTYPE', 1, true) then
      error(old, 0)
    end
    redis.call('DEL', key)
    old = {}
    for n = 1, #SYSTEM do
      old[n] = false
    end
  end
  for _, n in ipairs({1, 2, 6, 7}) do
    if old[n] and not tonumber(old[n]) then
      if not drops then
        return nil
      end
      old[n] = '0'
    end
  end
  return old
end

function operations.A(key, at)
  local prefix, name = string.sub(key, 1, width), string.sub(key, width + 3)
  local mode, token, base, number = ARGV[at + MODE], ARGV[at + TOKEN], ARGV[at + BASE], ARGV[at + NUMBER]
  local held = token ~= ''
  if held then
    local taken, holder = leased(prefix, name)
    if not taken or holder ~= token then
      return {'LEASE'}
    end
  end
  local names = {}
  -- What a write replaces need not be read.
  if mode == 'merge' or mode == 'replace' then
    for n = 1, tonumber(ARGV[at + SETS]) + tonumber(ARGV[at + UNSETS]) do
      names[n] = ARGV[at + FIRST + n - 1]
    end
  end
  local drops = mode ~= 'merge'
  local old = load(key, drops and {} or names, drops)
  if not old then
    return {'DAMAGED'}
  end
  if base ~= '-' and base ~= '=' .. (old[4] or '') then
    return {'BASE'}
  end
  if number ~= '' then
    local there = old[1] and not (old[6] and tonumber(old[6]) <= now)
    if not there or number ~= old[2] or ARGV[at + WRITER] ~= old[3] then
      return {'VERSION'}
    end
  end
  local result
  if mode == 'delete' or mode == 'forget' then
    result = remove(key, prefix, name, mode, ARGV[at + WRITE], old)
  else
    result = write_record(key, prefix, name, at, names, held, old)
    if result[1] ~= '' then
      return result
    end
  end
  if ARGV[at + MEMO] ~= '-' and mode ~= 'forget' then
    keep_timed(prefix .. 'm:' .. name, string.sub(ARGV[at + MEMO], 2), DAY)
  end
  if held then
    if ARGV[at + LEASE] == '' then
      redis.call('DEL', prefix .. 'l:' .. name)
    else
      keep_timed(prefix .. 'l:' .. name, token, tonumber(ARGV[at + LEASE]))
    end
  end
  return result
end

local function with_record(result, key, at)
  if result[1] == '' and ARGV[at + RETURNING] == '1' then
    result[5] = redis.call('HGETALL', key)
  end
  return result
end

local number = tonumber(ARGV[3])
local kept = number > 0 and redis.call('GET', KEYS[2])
local journal = {}
if kept then
  kept = cmsgpack.unpack(kept)
  if kept[1] > number then
    return redis.error_reply('STALE a later batch of this lane was made already')
  end
  -- Made before; its answer got lost. The renewed TTL is a write for WAIT to wait for.
  kept = kept[1] == number and redis.call('EXPIRE', KEYS[2], 600) and kept[2]
end

local results = {exact(now)}
local at = 4
for n = 3, #KEYS do
  local letter = ARGV[at]
  local made, result
  if kept and kept[n - 2] then
    made, result = true, kept[n - 2]
  else
    made, result = pcall(operations[letter], KEYS[n], at + 2)
    if not made then
      result = {'ERROR', type(result) == 'table' and result.err or tostring(result)}
    end
  end
  if letter == 'A' then
    journal[n - 2] = made and {unpack(result, 1, 4)} or result
    with_record(result, KEYS[n], at + 2)
  else
    journal[n - 2] = false
  end
  results[n - 1] = result
  at = at + 2 + tonumber(ARGV[at + 1])
end
if number > 0 and not kept then
  -- Refused only where every write of this batch was: then there is nothing to remember.
  redis.pcall('SET', KEYS[2], cmsgpack.pack({number, journal}), 'EX', 600)
end
return results
