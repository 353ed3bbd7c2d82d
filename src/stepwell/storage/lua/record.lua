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
--   x               the addresses of what a sweep may remove, by the time from which it may
--   j:<lane>        the number and the results of a lane's last batch
--   -               never written: a call names it as a key, and so it is refused while its slot is moved by
--                   hand from node to node, when some keys of a record may be here and some there
--
-- Fields of the record ("$" and a letter is no data field's name):
--   $z size ($z is there: a record; not there: a tombstone)   $v version   $w its write id   $b base
--   $t written at   $e expires at   $d deadline   $h head   $f flow   $s state   $g tags, each ended by a newline
--
-- Values are never parsed. Numbers are doubles: exact up to 2^53, if they are written with enough digits.

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end
-- The length of "stepwell:{17}:".
local width = tonumber(ARGV[2])

local DAY = 86400
-- Beyond this many arguments, unpack() fails; lists are sent in pieces.
local MOST = 4000

-- Lua's own conversion keeps 14 digits only.
local function exact(number)
  return string.format('%.17g', number)
end

local function whole(number)
  return string.format('%.0f', number)
end

-- An address is "namespace/key", with the slashes of the namespace escaped.
local function split(name)
  local at = 1
  while true do
    at = string.find(name, '[\\/]', at)
    if string.byte(name, at) == 47 then
      return string.sub(name, 1, at - 1), string.sub(name, at + 1)
    end
    at = at + 2
  end
end

-- "<until> <text>", as leases and memos are kept.
local function timed(key)
  local kept = redis.call('GET', key)
  if not kept then
    return nil, 0
  end
  local space = string.find(kept, ' ', 1, true)
  return string.sub(kept, space + 1), tonumber(string.sub(kept, 1, space - 1))
end

local function keep_timed(key, text, seconds)
  -- A minute longer than it counts: what counts is judged by one clock, which need not be the server's.
  local ttl = whole(math.ceil(math.max(seconds, 0) * 1000) + 60000)
  redis.call('SET', key, exact(now + seconds) .. ' ' .. text, 'PX', ttl)
end

local function leased(prefix, name)
  local token, till = timed(prefix .. 'l:' .. name)
  return token ~= nil and till > now, token, till
end

-- Out of the indexes of tags and deadlines, or of all that list records.
local function forget_tags(prefix, space, key, tags)
  for tag in string.gmatch(tags, '([^\n]*)\n') do
    redis.call('ZREM', prefix .. 'g:' .. space .. '/' .. tag, key)
  end
end

local function unlist(prefix, name, tags, deadline)
  local space, key = split(name)
  redis.call('ZREM', prefix .. 'n:' .. space, key)
  if tags then
    forget_tags(prefix, space, key, tags)
  end
  if deadline then
    redis.call('ZREM', prefix .. 'd:' .. space, key)
  end
end
