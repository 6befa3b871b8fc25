"""The Lua scripts of the episode store, each behind one typed async function; nothing else writes an episode's keys.

The sources are in `redis_lua.py`. Refusals that mean something come back as words; they become errors of the tree in
`redis_store.py`, which also says how long a script may take.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import msgspec

from tracker import redis_lua as lua
from tracker.arms import canaries
from tracker.redis_keys import ANSWER_TTL_MS, EPISODE_TTL_MS, TOMBSTONE_TTL_MS, RedisKeys
from tracker.store import Begun, Routing
from tracker.types import EpisodeHead, EpisodeStatus, Intent, Record

Argument = str | bytes | int
Run = Callable[[lua.Script, Sequence[str], Sequence[Argument]], Awaitable[Any]]
"""Runs a script with its keys and arguments: how hurried or how patient is the caller's choice."""


class Located(Record, frozen=True):
    """What an episode holds already of a call."""

    num_blocks: int
    """How many blocks of the chain are known."""
    place: bytes | None
    """Where the longest hit lies."""
    missing: tuple[int, ...]
    """Which of the bodies asked about are not stored yet."""


class Ending(Record, frozen=True):
    """What `end_call` stores."""

    episode_id: str
    call_id: str
    record: bytes
    own: tuple[bytes, ...]
    messages: tuple[bytes, ...]
    """Digests of the bodies the record names, in order."""
    bodies: dict[bytes, bytes]
    """Those that may not be stored yet, by digest."""
    entries: tuple[bytes, ...]
    """digest + span, for the block index."""
    ended_ms: int
    note: bytes = b""
    """For claims; empty where nothing is noted."""
    lost: bool = False


async def open_episode(run: Run, keys: RedisKeys, head: EpisodeHead, idle_ms: int | None = None) -> str:
    """`ok`, also where it is open already, or `deleted`."""
    fixed = "" if head.version is None else head.version
    return _word(
        await run(
            lua.OPEN,
            [*keys.episode(head.episode_id), keys.tombstone(head.episode_id)],
            [
                *(msgspec.msgpack.encode(head), fixed, head.policy or "", EPISODE_TTL_MS, head.created_ms),
                "" if idle_ms is None else idle_ms,
                *(part for policy, version in canaries(head).items() for part in (policy, version)),
            ],
        )
    )


async def begin_call(run: Run, keys: RedisKeys, intent: Intent, how: Sequence[Argument]) -> Begun | str:
    """Write an intent; else `unknown`, `deleted`, `ended` or `recorded`. `how` is pin, engines and mark."""
    episode_id, policy = intent.episode_id, intent.policy or ""
    shared = [keys.tombstone(episode_id), keys.due, keys.routing(policy)]
    packed = msgspec.msgpack.encode(intent)
    pin, engines, mark = how
    reply = await run(
        lua.BEGIN,
        [*keys.episode(episode_id), *shared],
        [
            *(keys.prefix, EPISODE_TTL_MS, episode_id, intent.call_id, intent.worker, intent.deadline_ms, packed),
            *(pin, policy, engines, intent.started_ms, mark),
        ],
    )
    word = _word(reply[0])
    if word != "ok":
        return word
    _, index, version, repinned, engine, first_mark = reply
    return Begun(
        index=index,
        version=version,
        repinned_from=repinned if repinned >= 0 else None,
        engine=engine.decode() or None,
        mark=first_mark,
    )


async def locate(
    run: Run, keys: RedisKeys, episode_id: str, chain: Sequence[bytes], digests: Sequence[bytes]
) -> Located:
    """Find the longest known prefix of a chain, and which bodies are not stored yet."""
    reply = await run(lua.LOCATE, keys.episode(episode_id), [b"".join(chain), b"".join(digests)])
    num_blocks, place, missing = reply
    return Located(num_blocks=num_blocks, place=place, missing=tuple(missing))


async def find_chunks(run: Run, keys: RedisKeys, episode_id: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
    """Where chunks lie that the episode holds already."""
    if not digests:
        return {}
    places = await run(lua.CHUNKS, keys.episode(episode_id), [b"".join(digests)])
    return {digest: place for digest, place in zip(digests, places, strict=True) if place is not None}


async def end_call(run: Run, keys: RedisKeys, ending: Ending) -> tuple[str, int]:
    """(`ok`, list index of the record), or with -1 `known` (recorded before), `lost` (given up before), `refused` (no
    intent) or `missing` (a body)."""
    arguments: list[Argument] = [
        *(keys.prefix, EPISODE_TTL_MS, ending.episode_id, ending.call_id, int(ending.lost), ending.record),
        *(b"".join(ending.own), b"".join(ending.messages)),
        *(b"".join(ending.entries), len(ending.entries[0]) if ending.entries else 1),
        *(ending.ended_ms, ending.note, ANSWER_TTL_MS),
    ]
    for digest, body in ending.bodies.items():
        arguments += (digest, body)
    reply = await run(lua.END, [*keys.episode(ending.episode_id), keys.due], arguments)
    if not isinstance(reply, list):
        return _word(reply), -1
    word, position = cast("tuple[bytes, int]", reply)
    return _word(word), position


async def forget_call(run: Run, keys: RedisKeys, intent: Intent) -> bool:
    """Take back an intent whose request never left."""
    arguments = [keys.prefix, intent.episode_id, intent.call_id]
    return await run(lua.FORGET, [*keys.episode(intent.episode_id), keys.due], arguments) == 1


async def finish(run: Run, keys: RedisKeys, episode_id: str, status: EpisodeStatus) -> tuple[str, str]:
    """(`ok`, state), (`other`, the status it ended with), or (`unknown` or `deleted`, nothing)."""
    shared = [keys.finishing, keys.tombstone(episode_id)]
    reply = await run(lua.FINISH, [*keys.episode(episode_id), *shared], [episode_id, status.value, EPISODE_TTL_MS])
    return _word(reply[0]), _word(reply[1]) if len(reply) > 1 else ""


async def seal(run: Run, keys: RedisKeys, episode_id: str) -> str:
    """`sealed`, `waiting`, `unknown` or `deleted`."""
    shared = [keys.tombstone(episode_id)]
    return _word(await run(lua.SEAL, [*keys.episode(episode_id), *shared], [keys.prefix, EPISODE_TTL_MS]))


async def add_event(run: Run, keys: RedisKeys, episode_id: str, event: bytes) -> str:
    """`ok`, `unknown` or `deleted`; keeps what time to live the episode has."""
    return _word(await run(lua.EVENT, [*keys.episode(episode_id), keys.tombstone(episode_id)], [event]))


async def expire(run: Run, keys: RedisKeys, episode_id: str, after_ms: int) -> str:
    """`ok`, also where there is nothing left, or the state that forbids it."""
    return _word(await run(lua.EXPIRE, [*keys.episode(episode_id), keys.finishing], [episode_id, after_ms]))


async def delete(run: Run, keys: RedisKeys, episode_id: str) -> None:
    """Drop an episode with its calls in flight, and leave a tombstone."""
    shared = [keys.tombstone(episode_id), keys.due, keys.finishing]
    await run(lua.DELETE, [*keys.episode(episode_id), *shared], [keys.prefix, episode_id, TOMBSTONE_TTL_MS])


async def set_routing(run: Run, keys: RedisKeys, policy: str, routing: Routing) -> None:
    """Tell all workers which versions calls may get."""
    withdrawn = "".join(f",{version}" for version in routing.withdrawn) + ","
    await run(lua.ROUTING, [keys.routing(policy)], [routing.active, routing.oldest, withdrawn])


async def heartbeat(run: Run, keys: RedisKeys, worker: str, ttl_ms: int) -> None:
    """The worker lives for `ttl_ms` more."""
    await run(lua.HEARTBEAT, [keys.worker(worker)], [ttl_ms])


def _word(reply: bytes) -> str:
    return reply.decode()
