"""The Lua sources for implicit episodes; `redis_claims.py` gives each a typed function.

An answer is `CLAIMS EPISODE ROLE` in the list of each digest it is found by, oldest first. The attempts with one
body are a hash: a number for each name, and under the number `STATE RETRY RETRIED EPISODE`, where the state is
`flight`, `gave` or `failed`. How an episode stands is read from its own keys. Bodies and texts are never here.
"""

from __future__ import annotations

from typing import Final

from tracker.redis_lua import Script

CLAIM: Final = Script(
    """
local attempts, session = KEYS[1], KEYS[2]
local prefix, proposed, attempt, avoided = ARGV[1], ARGV[3], ARGV[4], ARGV[7]
local now, retry, pending_ms = tonumber(ARGV[2]), tonumber(ARGV[5]), tonumber(ARGV[8])
local attempt_ttl, session_ttl, keep = ARGV[9], ARGV[10], tonumber(ARGV[11])
local standing = {}

local function look(episode)
  local base = prefix .. ':{' .. episode .. '}:'
  local state, at, idle = unpack(redis.call('HMGET', base .. 'm', 'state', 'at', 'idle'))
  if not state then return redis.call('EXISTS', base .. 'gone') == 1 and 'over' or 'unknown' end
  if state ~= 'open' or not idle then return 'over' end
  if redis.call('EXISTS', base .. 'i') == 1 or now - tonumber(at) < tonumber(idle) then return 'open' end
  return 'over'
end

local function stands(episode)
  if episode == avoided then return 'over' end
  standing[episode] = standing[episode] or look(episode)
  return standing[episode]
end

local function of_session()
  local episode, since = unpack(redis.call('HMGET', session, 'episode', 'since'))
  local is_new = true
  if episode then
    local found = stands(episode)
    is_new = not (found == 'open' or (found == 'unknown' and now - tonumber(since) < pending_ms))
  end
  if is_new then
    episode = proposed
    redis.call('HSET', session, 'episode', episode, 'since', now)
  end
  redis.call('PEXPIRE', session, session_ttl)
  return episode
end

local function of_attempt()
  local by_state = {failed = {}, flight = {}, gave = {}}
  local first, last = unpack(redis.call('HMGET', attempts, 'first', 'next'))
  for number = tonumber(first or 1), tonumber(last or 0) do
    local entry = redis.call('HGET', attempts, '#' .. number)
    if entry then
      local state, count, retried, episode = string.match(entry, '^(%S+) (%d+) (%d) (%S+)$')
      if tonumber(count) < retry and retried == '0' and stands(episode) == 'open' then
        table.insert(by_state[state], {number = number, state = state, count = count, episode = episode})
      end
    end
  end
  local likely = #by_state.flight > 0 and by_state.flight or by_state.gave
  local found = by_state.failed[1] or (#likely == 1 and likely[1])
  if not found then return nil end
  redis.call('HSET', attempts, '#' .. found.number, found.state .. ' ' .. found.count .. ' 1 ' .. found.episode)
  return found.episode
end

local function note_attempt(episode)
  local number = redis.call('HINCRBY', attempts, 'next', 1)
  redis.call('HSET', attempts, attempt, number, '#' .. number, 'flight ' .. retry .. ' 0 ' .. episode)
  local old = number - keep
  if old > 0 then
    redis.call('HDEL', attempts, '#' .. old)
    redis.call('HSET', attempts, 'first', old + 1)
  end
  redis.call('PEXPIRE', attempts, attempt_ttl)
end

local function parsed(key, named)
  local all = {}
  for n, entry in ipairs(redis.call('LRANGE', key, 0, -1)) do
    local claims, episode, role = string.match(entry, '^(%d+) (%S+) (%S+)$')
    if not named or episode == named then
      all[#all + 1] = {place = n - 1, claims = tonumber(claims), episode = episode, role = role}
    end
  end
  return all
end

local function least_claimed(answers)
  table.sort(answers, function(a, b)
    if a.claims ~= b.claims then return a.claims < b.claims end
    return a.place < b.place
  end)
  for _, answer in ipairs(answers) do
    if stands(answer.episode) == 'open' then return answer end
  end
  return nil
end

local function of_answers(named)
  for n = 3, #KEYS do
    local known = parsed(KEYS[n], named)
    if #known > 0 then
      local found = least_claimed(known)
      if not found then return nil end
      local claims = string.format('%d', found.claims + 1)
      redis.call('LSET', KEYS[n], found.place, table.concat({claims, found.episode, found.role}, ' '))
      return found
    end
  end
  return nil
end

local named = nil
if ARGV[6] == '1' then named = of_session() end
if not named and retry > 0 then named = of_attempt() end
local answer = of_answers(named)
local episode = named or (answer and answer.episode) or proposed
note_attempt(episode)
return {episode, stands(episode) == 'open' and 1 or 0, answer and answer.role or ''}
""",
    allow_oom=False,
)

END_IDLE: Final = Script(
    """
local finishing = KEYS[8]
local episode, now, status, ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local state, at, idle = unpack(redis.call('HMGET', m, 'state', 'at', 'idle'))
if not state then return redis.call('EXISTS', KEYS[9]) == 1 and 'deleted' or 'unknown' end
if state ~= 'open' or not idle or redis.call('EXISTS', i) == 1 or now - tonumber(at) < tonumber(idle) then
  return 'active'
end
redis.call('HSET', m, 'state', 'finishing', 'status', status)
redis.call('SADD', finishing, episode)
touch(ttl)
return 'ended'
""",
    allow_oom=True,
)

CLAIM_SCRIPTS: Final = (CLAIM, END_IDLE)
"""To be loaded when a store connects."""
