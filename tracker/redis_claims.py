"""Claims and notes in Redis, each script of `redis_claim_lua.py` behind one typed function.

What a recorded call notes is written by `END` in `redis_lua.py`, in the step that records it; `packed_note` says what.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tracker import redis_claim_lua as lua
from tracker.claims import PENDING_MS, UNDELIVERED, Claim, Claimed, Note
from tracker.redis_keys import ATTEMPT_TTL_MS, EPISODE_TTL_MS, RedisKeys
from tracker.redis_scripts import Run
from tracker.types import Call, EpisodeStatus

MAX_ATTEMPTS: Final = 256
"""How many attempts with one body are kept."""


async def claim(run: Run, keys: RedisKeys, wanted: Claim) -> Claimed:
    """The episode of a call that names none."""
    attempts = keys.attempts(wanted.scope, wanted.body_digest)
    session = attempts if wanted.session is None else keys.session(wanted.scope, wanted.session)
    episode_id, is_open, role = await run(
        lua.CLAIM,
        [attempts, session, *(keys.answers(wanted.scope, trace) for trace in wanted.traces)],
        [
            *(keys.prefix, wanted.now_ms, wanted.proposed, wanted.attempt, wanted.retry),
            *(int(wanted.session is not None), wanted.avoided, PENDING_MS),
            *(ATTEMPT_TTL_MS, EPISODE_TTL_MS, MAX_ATTEMPTS),
        ],
    )
    return Claimed(episode_id=episode_id.decode(), is_open=is_open == 1, role=role.decode() or None)


async def end_idle(run: Run, keys: RedisKeys, episode_id: str, now_ms: int) -> str:
    """`ended`, `active`, `unknown` or `deleted`."""
    shared = [keys.finishing, keys.tombstone(episode_id)]
    arguments = [episode_id, now_ms, EpisodeStatus.OK.value, EPISODE_TTL_MS]
    return (await run(lua.END_IDLE, [*keys.episode(episode_id), *shared], arguments)).decode()


def packed_note(keys: RedisKeys, call: Call, note: Note | None) -> bytes:
    """A note as `END` takes it, in text only: what its unpacking surely knows."""
    if note is None:
        return b""
    attempts = keys.attempts(note.scope, call.body_digest)
    state = "failed" if call.state in UNDELIVERED else "gave"
    answers = [keys.answers(note.scope, trace) for trace in note.answers]
    return msgspec.msgpack.encode((attempts, note.attempt, state, note.role, answers))
