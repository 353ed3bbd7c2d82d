-- The layout of the keys, and functions for all scripts. This file is prepended to each of them.
--
-- All keys begin with a prefix such as "stepwell:{17}:", so that a record and its index entries share a slot:
--   r:<address>     the record, a hash: data fields under their names, and the fields listed below
--   p:<address>     its parts, a hash
--   o:<address>     the names of its parts, sorted. The first read of a range makes it, and later writes keep it
--   l:<address>     its lease: "<until> <token>"; the TTL of the key is only for cleanup
--   m:<address>     its memo: "<until> <text>"; likewise
--   k:<namespace>   the keys of all records of a namespace: an ordered index, see below
--   t:<namespace>   tag, newline, key of those with tags: an ordered index
--   d:<namespace>   the keys of those with a deadline, by deadline
--   f:<namespace>/<flow>  the same for one flow, written as "=<flow>", or "-" without one
--   q:<namespace>   the queued ones, sorted: name, newline, negated priority and time (22 hex digits), key
--   s               the namespaces that have records
--   x               the addresses that a sweep may remove, by the time from which it may
--   j:<lane>        the number and the results of a lane's last batch, or the fence of its claims
--   -               never written. Each script reads it first for each hash tag: this fails if the slot is on another node,
--                   or migrates key by key, when some keys of a record may be on one node and some on the other
--
-- Fields of the record ("$" and a letter is never the name of a data field):
--   $z size   $v version   $w its write id   $b base   $t written at   $e expires at   $d deadline
--   $h head   $f flow   $s state   $g tags, each ended by a newline   $q its entry in q: without the key
-- A hash with $z is a record. Without $z it is the rest of one: a tombstone ($v $w $b $t $g); the tags of an expired
-- record whose memo is still valid ($g); or the marker of a record that was forgotten while it was held ($b).
--
-- Values are never parsed. Numbers are doubles, which are exact up to 2^53 if written with enough digits.

-- A script names no keys, so that one call may use several hash tags of a node. Its only argument is a msgpack array, which
-- costs client and server less than many arguments: the time (false: that of the server), the prefix of all keys, and
-- then what the script needs. A missing value is false.

-- Access to locals is faster than to globals.
local ARGV, call, tonumber, unpack = cmsgpack.unpack(ARGV[1]), redis.call, tonumber, unpack
local find, format, sub = string.find, string.format, string.sub

local now = ARGV[1]
if not now then
  local time = call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end

-- Return the beginning of all keys of a hash tag, such as "stepwell:{17}:".
local function prefix_of(tag)
  return ARGV[2] .. ':{' .. tag .. '}:'
end

-- Its length.
local width = #prefix_of('00')

local DAY = 86400
-- unpack() fails for long lists, so they are sent in pieces of this length.
local MOST = 4000

-- Lua's own conversion keeps only 14 digits.
local function exact(number)
  return format('%.17g', number)
end

local function whole(number)
  return format('%.0f', number)
end

local now_text = exact(now)

-- An address is "namespace/key", with the slashes of the namespace escaped.
local function split(name)
  local at = 1
  while true do
    at = find(name, '[\\/]', at)
    if string.byte(name, at) == 47 then
      return sub(name, 1, at - 1), sub(name, at + 1)
    end
    at = at + 2
  end
end

-- Split "<until> <text>", the form of leases and memos; return the text and the time until which it is valid.
local function timed(kept)
  if not kept then
    return nil, 0
  end
  local space = find(kept, ' ', 1, true)
  return sub(kept, space + 1), tonumber(sub(kept, 1, space - 1))
end

local function keep_timed(key, text, seconds)
  -- The key outlives its validity by a minute, because the clock in use may differ from the server's.
  local life = whole(math.ceil(math.max(seconds, 0) * 1000) + 60000)
  call('SET', key, exact(now + seconds) .. ' ' .. text, 'PX', life)
end

-- An ordered index is a set of texts in chunks: sorted sets that are small enough for Redis to store them as one compact
-- list, at a quarter of the bytes. The key of a chunk is that of the index, a slash, and the lowest text that belongs
-- there. The key of the index itself is a sorted set of these texts, without that of the first chunk, which is empty.
-- Servers store up to 128 texts compactly by default.
local CHUNK = 120

-- Return the lowest text of the chunk that a text belongs to.
local function chunk_of(index, text)
  return call('ZREVRANGEBYLEX', index, '[' .. text, '-', 'LIMIT', 0, 1)[1] or ''
end

local function index_add(index, text)
  local first = chunk_of(index, text)
  local chunk = index .. '/' .. first
  if call('ZCARD', chunk) >= CHUNK and not call('ZSCORE', chunk, text) then
    local upper = call('ZRANGE', chunk, CHUNK / 2, -1)
    local entries = {}
    for n = 1, #upper do
      entries[2 * n - 1], entries[2 * n] = 0, upper[n]
    end
    call('ZADD', index .. '/' .. upper[1], unpack(entries))
    call('ZREMRANGEBYRANK', chunk, CHUNK / 2, -1)
    call('ZADD', index, 0, upper[1])
    chunk = index .. '/' .. chunk_of(index, text)
  end
  call('ZADD', chunk, 0, text)
end

local function index_remove(index, text)
  local first = chunk_of(index, text)
  local chunk = index .. '/' .. first
  if call('ZREM', chunk, text) == 1 and first ~= '' and call('EXISTS', chunk) == 0 then
    call('ZREM', index, first)
  end
end

-- Call "visit" with the key of each chunk that may have texts from "low" to "high", which are in the form of ZRANGEBYLEX,
-- and whether all its texts are in this range, until it returns true.
local function index_walk(index, low, high, visit)
  local first = low == '-' and '' or chunk_of(index, sub(low, 2))
  local whole = low == '-' and high == '+'
  while first and not visit(index .. '/' .. first, whole) do
    first = call('ZRANGEBYLEX', index, '(' .. first, high, 'LIMIT', 0, 1)[1]
    whole = high == '+'
  end
end

-- Return the texts from "low" to "high", at most "most".
local function index_range(index, low, high, most)
  local found = {}
  index_walk(index, low, high, function(chunk, whole)
    -- By position it is faster, because nothing is compared.
    local texts = whole and call('ZRANGE', chunk, 0, most - #found - 1)
      or call('ZRANGEBYLEX', chunk, low, high, 'LIMIT', 0, most - #found)
    for n = 1, #texts do
      found[#found + 1] = texts[n]
    end
    return #found >= most
  end)
  return found
end

-- Return the number of texts from "low" to "high". It stops counting when there are "most".
local function index_count(index, low, high, most)
  local count = 0
  index_walk(index, low, high, function(chunk, whole)
    count = count + (whole and call('ZCARD', chunk) or call('ZLEXCOUNT', chunk, low, high))
    return count >= most
  end)
  return count
end

-- Return the bounds, in the form of ZRANGEBYLEX, of the texts that begin with a tag and a newline, or of all texts for
-- an empty string.
local function bounds(begins)
  if begins == '' then
    return '-', '+'
  end
  return '[' .. begins, '(' .. sub(begins, 1, -2) .. '\11'
end

-- Return the keys of the texts of an index from "low" to "high", which begin with a tag and a newline or an empty string.
local function keys_of(index, begins, low, high, most)
  local keys = index_range(index, low, high, most)
  for n, text in ipairs(keys) do
    keys[n] = sub(text, #begins + 1)
  end
  return keys
end

local function untag(prefix, name, tags)
  if tags then
    local space, key = split(name)
    for tag in string.gmatch(tags, '([^\n]*)\n') do
      index_remove(prefix .. 't:' .. space, tag .. '\n' .. key)
    end
  end
end

-- Return the key of the index of deadlines of one flow.
local function flow_deadlines(prefix, space, flow)
  return prefix .. 'f:' .. space .. '/' .. (flow and '=' .. flow or '-')
end

-- Remove a record from the indexes of records, deadlines and queues. Its tags stay in their index until the rest is
-- removed.
local function unlist(prefix, name, deadline, flow, queue)
  local space, key = split(name)
  local index = prefix .. 'k:' .. space
  index_remove(index, key)
  if call('EXISTS', index, index .. '/') == 0 then
    call('SREM', prefix .. 's', space)
  end
  if deadline then
    call('ZREM', prefix .. 'd:' .. space, key)
    call('ZREM', flow_deadlines(prefix, space, flow), key)
  end
  if queue then
    call('ZREM', prefix .. 'q:' .. space, queue .. key)
  end
end

-- Whether a record has expired: it is hidden until it is swept.
local function has_expired(prefix, space, key)
  local expires = call('HGET', prefix .. 'r:' .. space .. '/' .. key, '$e')
  return expires and tonumber(expires) <= now
end

local function text_of(problem)
  return type(problem) == 'table' and problem.err or tostring(problem)
end

-- Return what "read" returns for the prefix and the place in the list of each of the hash tags in ARGV[3]; the text of
-- an error if it fails.
local function for_tags(read)
  local answers = {}
  for n, tag in ipairs(ARGV[3]) do
    local prefix = prefix_of(tag)
    local made, answer = pcall(function()
      call('EXISTS', prefix .. '-')
      return read(prefix, n)
    end)
    answers[n] = made and answer or text_of(answer)
  end
  return answers
end
