"""The Lua sources of the episode store; `redis_scripts.py` gives each a typed function.

A script is one step for every gateway at once, and safe to repeat. Only `BEGIN` and `OPEN` may be refused when Redis is
at `maxmemory`: what is in flight can still be recorded, and an episode can still end. Scripts decide by what is stored;
bytes they carry (intents, records, bodies) are opaque to them.
"""

from __future__ import annotations

import hashlib
from typing import Final


class Script:
    """Lua source and the digest by which Redis knows it."""

    __slots__ = ("digest", "source")

    def __init__(self, source: str, *, allow_oom: bool) -> None:
        self.source = f"#!lua{' flags=allow-oom' if allow_oom else ''}\n{_LIBRARY}\n{source}"
        self.digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


# KEYS[1..7] are an episode's keys wherever a script takes them. An episode *holds* a version while it is pinned to it
# or has a call in flight on it; pins:POLICY counts the unsealed episodes that hold one.
_LIBRARY: Final = """
local m, i, c, k, b, t, e = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]

local function touch(ttl)
  for n = 1, 7 do redis.call('PEXPIRE', KEYS[n], ttl) end
end

local function holds(policy, version)
  return redis.call('HGET', m, 'pin:' .. policy) == version
    or redis.call('HEXISTS', m, 'n:' .. policy .. ':' .. version) == 1
end

-- When a call last began or ended: what idle episodes are known by.
local function active(ms)
  if tonumber(ms) > tonumber(redis.call('HGET', m, 'at') or '0') then redis.call('HSET', m, 'at', ms) end
end

local function count(prefix, policy, version, by)
  local key = prefix .. ':pins:' .. policy
  if redis.call('HINCRBY', key, version, by) <= 0 then redis.call('HDEL', key, version) end
end

local function leave(prefix, policy, version)
  if policy == '' then return end
  local field = 'n:' .. policy .. ':' .. version
  if redis.call('HINCRBY', m, field, -1) <= 0 then
    redis.call('HDEL', m, field)
    if not holds(policy, version) then count(prefix, policy, version, -1) end
  end
end

local function unpacked(stored)
  local index, version, policy, worker = struct.unpack('>I4I4ss', stored)
  return index, tostring(version), policy, worker
end

local function end_intent(prefix, due, episode, call, stored)
  local _, version, policy, worker = unpacked(stored)
  redis.call('HDEL', i, call)
  redis.call('ZREM', due, episode .. ' ' .. call .. ' ' .. worker)
  leave(prefix, policy, version)
end

local function release(prefix)
  local held = {}
  for _, field in ipairs(redis.call('HKEYS', m)) do
    local policy = string.match(field, '^pin:(.+)$')
    if policy then held[policy .. ':' .. redis.call('HGET', m, field)] = true end
    local counted = string.match(field, '^n:(.+)$')
    if counted then held[counted] = true end
  end
  for name in pairs(held) do
    local policy, version = string.match(name, '^(.+):(%d+)$')
    count(prefix, policy, version, -1)
  end
end
"""

OPEN: Final = Script(
    """
local head, fixed, policy, ttl, created, idle = unpack(ARGV, 1, 6)
if redis.call('EXISTS', KEYS[8]) == 1 then return 'deleted' end
if redis.call('HSETNX', m, 'head', head) == 1 then
  for n = 7, #ARGV, 2 do redis.call('HSET', m, 'arm:' .. ARGV[n], ARGV[n + 1]) end
  redis.call('HSET', m, 'state', 'open', 'next', '0', 'fixed', fixed, 'policy', policy, 'at', created)
  if idle ~= '' then redis.call('HSET', m, 'idle', idle) end
  touch(ttl)
end
return 'ok'
""",
    allow_oom=False,
)

BEGIN: Final = Script(
    """
local tombstone, due, routing = KEYS[8], KEYS[9], KEYS[10]
local prefix, ttl, episode, call, worker, deadline, intent = unpack(ARGV, 1, 7)
local pin, policy, engines, started, mark = unpack(ARGV, 8, 12)
local home = 'engine:' .. policy
local state, engine, fixed, head_policy, arm =
  unpack(redis.call('HMGET', m, 'state', home, 'fixed', 'policy', 'arm:' .. policy))
if not state then
  return {redis.call('EXISTS', tombstone) == 1 and 'deleted' or 'unknown'}
end
local known = redis.call('HGET', i, call)
if known then
  local index, version = unpacked(known)
  return {'ok', index, tonumber(version), -1, engine or '', redis.call('HGET', m, 'mark') or ''}
end
if state ~= 'open' then return {'ended'} end
if redis.call('HEXISTS', k, call) == 1 then return {'recorded'} end

local version, repinned = '0', -1
if policy ~= '' then
  local active, oldest, withdrawn = unpack(redis.call('HMGET', routing, 'active', 'oldest', 'withdrawn'))
  active, oldest, withdrawn = active or '0', tonumber(oldest or '0'), withdrawn or ','
  local pinned = redis.call('HGET', m, 'pin:' .. policy)
  local bad = pinned and (tonumber(pinned) < oldest or string.find(withdrawn, ',' .. pinned .. ',', 1, true))
  if fixed ~= '' and (head_policy == '' or head_policy == policy) then
    version = fixed
  elseif bad then
    version = active
    if version ~= pinned then repinned = tonumber(pinned) end
  elseif pinned and pin ~= 'call' then
    version = pinned
  elseif arm and tonumber(arm) > tonumber(active) and not string.find(withdrawn, ',' .. arm .. ',', 1, true) then
    version = arm  -- on trial still: once it is active, or withdrawn, its arm is like any other
  else
    version = active
  end
  if not holds(policy, version) then count(prefix, policy, version, 1) end
  redis.call('HSET', m, 'pin:' .. policy, version)
  redis.call('HINCRBY', m, 'n:' .. policy .. ':' .. version, 1)
  if pinned and pinned ~= version and not holds(policy, pinned) then count(prefix, policy, pinned, -1) end
end

local index = redis.call('HINCRBY', m, 'next', 1) - 1
engine = engine or ''
if engines ~= '' and not string.find(' ' .. engines .. ' ', ' ' .. engine .. ' ', 1, true) then
  engine = string.match(engines, '%S+')
  redis.call('HSET', m, home, engine)
end
if mark ~= '' then redis.call('HSETNX', m, 'mark', mark) end
active(started)
redis.call('HSET', i, call, struct.pack('>I4I4ss', index, tonumber(version), policy, worker) .. intent)
redis.call('ZADD', due, deadline, episode .. ' ' .. call .. ' ' .. worker)
touch(ttl)
return {'ok', index, tonumber(version), repinned, engine, redis.call('HGET', m, 'mark') or ''}
""",
    allow_oom=False,
)

LOCATE: Final = Script(
    """
local chain, digests = ARGV[1], ARGV[2]
local low, high, place = 0, #chain / 16, false
while low < high do
  local middle = math.floor((low + high + 1) / 2)
  local found = redis.call('HGET', b, string.sub(chain, middle * 16 - 15, middle * 16))
  if found then low, place = middle, found else high = middle - 1 end
end
local missing = {}
for n = 0, #digests / 16 - 1 do
  local digest = string.sub(digests, n * 16 + 1, n * 16 + 16)
  if redis.call('HEXISTS', t, 'o' .. digest) == 0 and redis.call('HEXISTS', t, 'm' .. digest) == 0 then
    missing[#missing + 1] = n
  end
end
return {low, place, missing}
""",
    allow_oom=True,
)

CHUNKS: Final = Script(
    """
local digests, places = ARGV[1], {}
for n = 1, #digests, 16 do places[#places + 1] = redis.call('HGET', b, string.sub(digests, n, n + 15)) end
return places
""",
    allow_oom=True,
)

END: Final = Script(
    """
local due = KEYS[8]
local prefix, ttl, episode, call, lost = unpack(ARGV, 1, 5)
local record, own, messages, spans, span_bytes, ended, note, answer_ttl = unpack(ARGV, 6, 13)
local known = redis.call('HGET', k, call)
if known then return string.sub(known, -1) == '1' and 'lost' or 'known' end
local intent = redis.call('HGET', i, call)
if not intent then return 'refused' end
local index = unpacked(intent)

local bodies = {}
for n = 14, #ARGV, 2 do bodies[ARGV[n]] = ARGV[n + 1] end

-- What later calls that name no episode find: how this attempt ended, and its answers.
local function leave_note(attempts, attempt, state, role, answers)
  local place = redis.call('HGET', attempts, attempt)
  local entry = place and redis.call('HGET', attempts, '#' .. place)
  if entry then redis.call('HSET', attempts, '#' .. place, (string.gsub(entry, '^%S+', state))) end
  for _, answer in ipairs(answers) do
    redis.call('RPUSH', answer, '0 ' .. episode .. ' ' .. role)
    redis.call('LTRIM', answer, -512, -1)
    redis.call('PEXPIRE', answer, tonumber(redis.call('HGET', m, 'idle') or '0') + answer_ttl)
  end
end

-- A body's number among its kind ('o' own, 'm' message). One that the other kind holds already is stored as its name.
local function number(kind, digest)
  local found = redis.call('HGET', t, kind .. digest)
  if found then return tonumber(found) end
  local other = kind == 'o' and 'm' or 'o'
  local twin = redis.call('HGET', t, other .. digest)
  local body = twin and ('=' .. other .. twin) or bodies[digest]
  if not body then return nil end
  local new = redis.call('HINCRBY', t, kind, 1) - 1
  redis.call('HSET', t, kind .. digest, new, kind .. new, body)
  return new
end

local owned, ranges = {}, {}
for n = 1, #own, 16 do
  local found = number('o', string.sub(own, n, n + 15))
  if not found then return 'missing' end
  owned[#owned + 1] = found
end
for n = 1, #messages, 16 do
  local found = number('m', string.sub(messages, n, n + 15))
  if not found then return 'missing' end
  local last = #ranges
  if last > 0 and ranges[last - 1] + ranges[last] == found then
    ranges[last] = ranges[last] + 1
  else
    ranges[last + 1], ranges[last + 2] = found, 1
  end
end
local numbers = cmsgpack.pack({owned, ranges})
local position = redis.call('RPUSH', c, struct.pack('>I4', #numbers) .. numbers .. record) - 1
redis.call('HSET', k, call, position .. ':' .. index .. ':' .. lost)
local place = struct.pack('>I4', position)
for n = 1, #spans, span_bytes do
  redis.call('HSET', b, string.sub(spans, n, n + 15), place .. string.sub(spans, n + 16, n + span_bytes - 1))
end
end_intent(prefix, due, episode, call, intent)
active(ended)
touch(ttl)
if note ~= '' then leave_note(unpack(cmsgpack.unpack(note))) end
return {'ok', position}
""",
    allow_oom=True,
)

FORGET: Final = Script(
    """
local due = KEYS[8]
local prefix, episode, call = unpack(ARGV)
local intent = redis.call('HGET', i, call)
if not intent then return 0 end
end_intent(prefix, due, episode, call, intent)
return 1
""",
    allow_oom=True,
)

FINISH: Final = Script(
    """
local finishing = KEYS[8]
local episode, status, ttl = unpack(ARGV)
local state, before = unpack(redis.call('HMGET', m, 'state', 'status'))
if not state then return {redis.call('EXISTS', KEYS[9]) == 1 and 'deleted' or 'unknown'} end
if state == 'open' then
  state = 'finishing'
  redis.call('HSET', m, 'state', state, 'status', status)
  redis.call('SADD', finishing, episode)
  touch(ttl)
elseif before ~= status then
  return {'other', before}
end
return {'ok', state}
""",
    allow_oom=True,
)

SEAL: Final = Script(
    """
local prefix, ttl = unpack(ARGV)
local state = redis.call('HGET', m, 'state')
if not state then return redis.call('EXISTS', KEYS[8]) == 1 and 'deleted' or 'unknown' end
if state == 'sealed' or state == 'archived' then return 'sealed' end
if state ~= 'finishing' or redis.call('EXISTS', i) == 1 then return 'waiting' end
release(prefix)
redis.call('HSET', m, 'state', 'sealed')
touch(ttl)
return 'sealed'
""",
    allow_oom=True,
)

EVENT: Final = Script(
    """
local ttl = redis.call('PTTL', m)
if ttl == -2 then return redis.call('EXISTS', KEYS[8]) == 1 and 'deleted' or 'unknown' end
redis.call('RPUSH', e, ARGV[1])
redis.call('PEXPIRE', e, ttl)
return 'ok'
""",
    allow_oom=True,
)

EXPIRE: Final = Script(
    """
local finishing = KEYS[8]
local episode, after = unpack(ARGV)
local state = redis.call('HGET', m, 'state')
if state and state ~= 'sealed' and state ~= 'archived' then return state end
redis.call('SREM', finishing, episode)
if state then
  redis.call('HSET', m, 'state', 'archived')
  touch(after)
end
return 'ok'
""",
    allow_oom=True,
)

DELETE: Final = Script(
    """
local tombstone, due, finishing = KEYS[8], KEYS[9], KEYS[10]
local prefix, episode, ttl = unpack(ARGV)
local state = redis.call('HGET', m, 'state')
local intents = redis.call('HGETALL', i)
for n = 1, #intents, 2 do end_intent(prefix, due, episode, intents[n], intents[n + 1]) end
if state == 'open' or state == 'finishing' then release(prefix) end
redis.call('SET', tombstone, '1', 'PX', ttl)
redis.call('SREM', finishing, episode)
for n = 1, 7 do redis.call('UNLINK', KEYS[n]) end
return 'ok'
""",
    allow_oom=True,
)

ROUTING: Final = Script(
    "return redis.call('HSET', KEYS[1], 'active', ARGV[1], 'oldest', ARGV[2], 'withdrawn', ARGV[3])", allow_oom=True
)
HEARTBEAT: Final = Script("return redis.call('SET', KEYS[1], '1', 'PX', ARGV[1])", allow_oom=True)

ALL: Final = (
    *(OPEN, BEGIN, LOCATE, CHUNKS, END, FORGET, FINISH),
    *(SEAL, EVENT, EXPIRE, DELETE, ROUTING, HEARTBEAT),
)
"""To be loaded when a store connects, so that the first calls need not carry the source."""
