-- What all scripts share; it is put in front of each of them.
--
-- Keys, with the prefix "stepwell:{17}:" in front of all, so that a record and its index entries share a slot:
--   r:<address>     the record, a hash: data fields under their names, and the fields listed below
--   p:<address>     its parts, a hash
--   l:<address>     its lease: "<until> <token>"; the key's TTL only collects garbage
--   m:<address>     its memo: "<until> <text>"; likewise
--   n:<namespace>   the keys of all records of a namespace, sorted
--   g:<namespace>/<tag>   the keys of those with a tag, sorted
--   d:<namespace>   the keys of those with a deadline, by deadline
--   s               the namespaces that have records
--   x               the addresses of what a sweep may remove, by the time from which it may
--   j:<lane>        the number and the results of a lane's last batch, or the fence of its claims
--   -               never written: a call names it as a key, and so it is refused while its slot is moved by
--                   hand from node to node, when some keys of a record may be here and some there
--
-- Fields of the record ("$" and a letter is no data field's name):
--   $z size   $v version   $w its write id   $b base   $t written at   $e expires at   $d deadline
--   $h head   $f flow   $s state   $g tags, each ended by a newline
-- With $z it is a record. Without, it is what one leaves behind: a tombstone ($v $w $b $t $g); the tags of an expired
-- one whose memo still counts ($g); or the mark of one that was forgotten under its holder ($b).
--
-- Values are never parsed. Numbers are doubles: exact up to 2^53, if they are written with enough digits.

-- Locals are quicker to reach than globals.
local ARGV, KEYS, call, tonumber, unpack = ARGV, KEYS, redis.call, tonumber, unpack
local find, format, sub = string.find, string.format, string.sub

local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end
-- The length of "stepwell:{17}:".
local width = tonumber(ARGV[2])

local DAY = 86400
-- Beyond this many arguments, unpack() fails; lists are sent in pieces.
local MOST = 4000

-- Lua's own conversion keeps 14 digits only.
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

-- "<until> <text>", as leases and memos are kept: the text, and until when it counts.
local function timed(kept)
  if not kept then
    return nil, 0
  end
  local space = find(kept, ' ', 1, true)
  return sub(kept, space + 1), tonumber(sub(kept, 1, space - 1))
end

-- For seconds as they were given: "<until> " and the TTL. Most claims of a batch are equally long.
local spans = {}

local function keep_timed(key, text, seconds)
  local span = spans[seconds]
  if not span then
    local count = tonumber(seconds)
    -- A minute longer than it counts: what counts is judged by one clock, which need not be the server's.
    span = {exact(now + count) .. ' ', whole(math.ceil(math.max(count, 0) * 1000) + 60000)}
    spans[seconds] = span
  end
  call('SET', key, span[1] .. text, 'PX', span[2])
end

local function untag(prefix, name, tags)
  if tags then
    local space, key = split(name)
    for tag in string.gmatch(tags, '([^\n]*)\n') do
      call('ZREM', prefix .. 'g:' .. space .. '/' .. tag, key)
    end
  end
end

-- Out of the indexes of records and deadlines. Tags stay as long as anything does.
local function unlist(prefix, name, deadline)
  local space, key = split(name)
  call('ZREM', prefix .. 'n:' .. space, key)
  if call('EXISTS', prefix .. 'n:' .. space) == 0 then
    call('SREM', prefix .. 's', space)
  end
  if deadline then
    call('ZREM', prefix .. 'd:' .. space, key)
  end
end
