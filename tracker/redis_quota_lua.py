"""The Lua sources for the limits of keys; `redis_quotas.py` gives each a typed function.

A key's places are a zset of `WORKER NAME` by deadline, its window a list of the times of its last calls (as many as
its rate allows in a minute), its tally a hash of the tokens it spent: in all, and on one day. Whatever refuses a call
is found before anything is written. Times are the callers': a window's or a tally's time that lies ahead of a caller's
is that of another worker's clock, or of one that jumped, which after a minute counts no more.
"""

from __future__ import annotations

from typing import Final

from tracker.redis_lua import Script

TAKE: Final = Script(
    """
local places, tally, window, swept = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local prefix, place, now, deadline = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local rate, most = tonumber(ARGV[5]), tonumber(ARGV[6])
local budget, daily = tonumber(ARGV[7]), tonumber(ARGV[8])
local spent, today, day = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local minute, ttl = tonumber(ARGV[12]), ARGV[13]

if redis.call('ZSCORE', places, place) then return {'ok', 0} end

-- The tally is never below what SQL has counted.
if budget or daily then
  local stored = redis.call('HMGET', tally, 'spent', 'today', 'day')
  spent = math.max(spent, tonumber(stored[1] or '0'))
  local stored_day = tonumber(stored[3] or '-1')
  if stored_day == day + 1 then day, today = stored_day, 0 end -- for a worker whose clock is ahead it is midnight
  if stored_day == day then today = math.max(today, tonumber(stored[2])) end
  if budget and spent >= budget then return {'token_budget', 0} end
  if daily and today >= daily then return {'token_budget_per_day', 0} end
end

-- A place whose time is up counts no more, nor one whose worker is dead: those are looked for only where there seems to
-- be no place left, and at most once a second.
redis.call('ZREMRANGEBYSCORE', places, '-inf', now)
if most then
  if redis.call('ZCARD', places) >= most and redis.call('SET', swept, '1', 'NX', 'PX', 1000) then
    local alive = {}
    for _, held in ipairs(redis.call('ZRANGE', places, 0, -1)) do
      local worker = string.match(held, '^%S+')
      if alive[worker] == nil then alive[worker] = redis.call('EXISTS', prefix .. ':worker:' .. worker) == 1 end
      if not alive[worker] then redis.call('ZREM', places, held) end
    end
  end
  if redis.call('ZCARD', places) >= most then return {'max_concurrent', 0} end
end

if rate then
  redis.call('LTRIM', window, -rate, -1)
  if redis.call('LLEN', window) >= rate then
    local age = now - tonumber(redis.call('LINDEX', window, 0))
    if age > -minute and age < minute then return {'requests_per_minute', math.min(minute, minute - age)} end
    redis.call('LPOP', window)
  end
  redis.call('RPUSH', window, string.format('%.0f', now))
  redis.call('PEXPIRE', window, 2 * minute)
end

if budget or daily then
  local fields = {spent, today, day}
  for n, value in ipairs(fields) do fields[n] = string.format('%.0f', value) end
  redis.call('HSET', tally, 'spent', fields[1], 'today', fields[2], 'day', fields[3])
  redis.call('PEXPIRE', tally, ttl)
end
redis.call('ZADD', places, deadline, place)
redis.call('PEXPIRE', places, ttl)
return {'ok', 0}
""",
    allow_oom=False,
)

GIVE_BACK: Final = Script(
    """
local places, tally = KEYS[1], KEYS[2]
local place, tokens, day = ARGV[1], ARGV[2], tonumber(ARGV[3])
if redis.call('ZREM', places, place) == 0 then return 0 end
local stored = tonumber(redis.call('HGET', tally, 'day') or '-1')
if stored >= 0 and tokens ~= '0' then
  redis.call('HINCRBY', tally, 'spent', tokens)
  if day == stored or day == stored - 1 then
    redis.call('HINCRBY', tally, 'today', tokens)
  else
    redis.call('HSET', tally, 'day', ARGV[3], 'today', tokens)
  end
end
return 1
""",
    allow_oom=True,
)

QUOTA_SCRIPTS: Final = (TAKE, GIVE_BACK)
