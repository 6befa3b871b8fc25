"""The limits of keys in Redis, each script of `redis_quota_lua.py` behind one typed function."""

from __future__ import annotations

from tracker import redis_quota_lua as lua
from tracker.quotas import MINUTE_MS, Limit, Place, Quota, Refusal, day_of, refusal
from tracker.redis_keys import QUOTA_TTL_MS, RedisKeys
from tracker.redis_scripts import Run


async def take_place(run: Run, keys: RedisKeys, place: Place, quota: Quota, now_ms: int) -> Refusal | None:
    """`None`, or the limit that refused it."""
    limits, today = quota.limits, day_of(now_ms)
    wanted = (limits.requests_per_minute, limits.max_concurrent, limits.token_budget, limits.token_budget_per_day)
    word, wait_ms = await run(
        lua.TAKE,
        keys.quota(place.key_id),
        [
            *(keys.prefix, place.member, now_ms, place.deadline_ms),
            *("" if limit is None else limit for limit in wanted),
            *(quota.spent, quota.spent_today if quota.day == today else 0, today),
            *(MINUTE_MS, QUOTA_TTL_MS),
        ],
    )
    if word == b"ok":
        return None
    return refusal(Limit(word.decode()), wait_ms, now_ms)


async def give_back(run: Run, keys: RedisKeys, place: Place, num_tokens: int, now_ms: int) -> bool:
    """Whether the place was still there, and what the call took is counted."""
    arguments = [place.member, num_tokens, day_of(now_ms)]
    return await run(lua.GIVE_BACK, keys.quota(place.key_id)[:2], arguments) == 1
