"""The episode store in Redis: what every gateway worker shares, and what an acknowledged call survives in.

Each promise of `store.py` is one script of `redis_scripts.py`; here are the bytes it carries, the patience it is run
with and the errors its words become. A new call is refused quickly when Redis does not answer; a call that ends is
repeated until it is recorded or its time is up, also if its caller left. Redis Cluster is not supported: scripts touch
keys of an episode and global ones together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Final, NoReturn, TypeVar

import msgspec
from redis.exceptions import OutOfMemoryError

from tracker import redis_claims as claims
from tracker import redis_quotas as quotas
from tracker import redis_scripts as scripts
from tracker.claims import Claim, Claimed, Note
from tracker.deltas import BLOCK_IDS, Chain, chunks, episode_key, tell
from tracker.errors import Conflict, Gone, NotFound, Unavailable
from tracker.intents import lost_call
from tracker.local_index import Known, LocalIndex
from tracker.packing import body_compressor, hashed_ids
from tracker.quotas import Place, Quota, Refusal
from tracker.records import contents_of, record_of
from tracker.redis_keys import RedisKeys
from tracker.redis_link import Command, Unsent
from tracker.redis_reading import head_of, intent_of, pairs, shelf_of, view_of
from tracker.redis_runner import Patience, RedisRunner
from tracker.store import Begun, EpisodeView, Routing
from tracker.types import Call, EpisodeHead, EpisodeState, EpisodeStatus, Event, Intent

ResultT = TypeVar("ResultT")
logger = logging.getLogger(__name__)
STORED: Final = ("ok", "known")
"""What a script says of a call that is recorded now, or was before."""


class RedisStore:
    """An `EpisodeStore` in a Redis of version 7.0 or later."""

    def __init__(
        self, url: str, prefix: str = "hone", *, strict: bool = True, patience: Patience | None = None
    ) -> None:
        self._keys = RedisKeys(prefix)
        self._redis = RedisRunner(url, patience or Patience(), strict=strict)
        self._owned: set[asyncio.Task[Any]] = set()
        self._num_ending = 0
        """Calls that are being recorded by whoever waits for that."""
        self._local = LocalIndex()
        self._compressor = body_compressor()

    @classmethod
    async def connect(
        cls, url: str, prefix: str = "hone", *, strict: bool = True, patience: Patience | None = None
    ) -> RedisStore:
        """A store whose links run in this event loop. Raises `Unavailable` or `SettingsError`, as `ping` does."""
        store = cls(url, prefix, strict=strict, patience=patience)
        try:
            await store._redis.start()
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def num_waiting(self) -> int:
        return len(self._owned) + self._num_ending

    async def ping(self) -> None:
        await self._redis.ping()

    async def close(self) -> None:
        """Wait for the calls that are being recorded, then close both links."""
        if self._owned:
            await asyncio.wait(self._owned)
        await self._redis.close()

    async def set_routing(self, policy: str, routing: Routing) -> None:
        await scripts.set_routing(self._redis.control, self._keys, policy, routing)

    async def get_routing(self, policy: str) -> Routing:
        fields = await self._redis.read("HMGET", self._keys.routing(policy), "active", "oldest", "withdrawn")
        active, oldest, withdrawn = fields
        return Routing(
            active=int(active or 0),
            oldest=int(oldest or 0),
            withdrawn=tuple(int(version) for version in (withdrawn or b"").split(b",") if version),
        )

    async def pins(self, policy: str) -> dict[int, int]:
        fields = await self._redis.read("HGETALL", self._keys.pins(policy))
        return {int(version): int(count) for version, count in pairs(fields)}

    async def claim(self, claim: Claim) -> Claimed:
        try:
            return await claims.claim(self._redis.hurried, self._keys, claim)
        except OutOfMemoryError as error:
            raise _full() from error

    async def end_idle(self, episode_id: str, now_ms: int) -> bool:
        word = await claims.end_idle(self._redis.control, self._keys, episode_id, now_ms)
        if word not in ("ended", "active"):
            _refuse(word, episode_id)
        return word == "ended"

    async def open(self, head: EpisodeHead, idle_ms: int | None = None) -> None:
        try:
            word = await scripts.open_episode(self._redis.control, self._keys, head, idle_ms)
        except OutOfMemoryError as error:
            raise _full() from error
        if word == "deleted":
            _refuse(word, head.episode_id)

    async def head(self, episode_id: str) -> EpisodeHead:
        head, gone = await self._redis.read_all(
            ("HGET", self._keys.part(episode_id, "m"), "head"), ("EXISTS", self._keys.tombstone(episode_id))
        )
        if head is None:
            _refuse("deleted" if gone else "unknown", episode_id)
        return head_of(head)

    async def begin_call(self, intent: Intent, pin: str, engines: Sequence[str] | None, mark: bytes = b"") -> Begun:
        """Where Redis does not say whether the intent was written, it is taken back as soon as Redis answers."""
        try:
            how = (pin, " ".join(engines or ()), mark)
            begun = await scripts.begin_call(self._redis.hurried, self._keys, intent, how)
        except OutOfMemoryError as error:
            raise _full() from error
        except Unsent:
            raise
        except (Unavailable, asyncio.CancelledError):
            self._own(scripts.forget_call(self._redis.patient(), self._keys, intent))
            raise
        if isinstance(begun, str):
            _refuse(begun, intent.episode_id)
        return begun

    async def end_call(self, call: Call, note: Note | None = None) -> bool:
        """Goes on if its caller is cancelled: what an engine did is recorded."""
        held = self._local.known(call.episode_id, call.index)
        if held is None:
            word = await asyncio.shield(self._own(self._append(call, note)))
            return word in STORED
        self._num_ending += 1
        try:
            return await self._append(call, note, held) in STORED
        except asyncio.CancelledError:
            self._own(self._append(call, note))  # it has been sent already; whether that was all of it is seen to here
            raise
        finally:
            self._num_ending -= 1

    async def abandon_call(self, episode_id: str, call_id: str, at_ms: int) -> bool:
        stored = await self._redis.read("HGET", self._keys.part(episode_id, "i"), call_id)
        if stored is None:
            return False
        call = lost_call(intent_of(stored), at_ms)
        return await asyncio.shield(self._own(self._append(call, None, lost=True))) == "ok"

    async def finish(self, episode_id: str, status: EpisodeStatus) -> EpisodeState:
        word, value = await scripts.finish(self._redis.control, self._keys, episode_id, status)
        if word == "other":
            raise Conflict(f"Episode {episode_id} ended as {value} already; it cannot end as {status}.")
        if word != "ok":
            _refuse(word, episode_id)
        return EpisodeState(value)

    async def seal(self, episode_id: str) -> bool:
        word = await scripts.seal(self._redis.control, self._keys, episode_id)
        if word not in ("sealed", "waiting"):
            _refuse(word, episode_id)
        return word == "sealed"

    async def view(self, episode_id: str) -> EpisodeView:
        m, i, c, k, _, t, e = self._keys.episode(episode_id)
        tombstone = self._keys.tombstone(episode_id)
        commands: list[Command] = [("HGETALL", m), ("HGETALL", i), ("LRANGE", c, 0, -1), ("HGETALL", k)]
        commands += [("HGETALL", t), ("LRANGE", e, 0, -1), ("EXISTS", tombstone)]
        state, intents, records, names, bodies, events, gone = await self._redis.read_at_once(*commands)
        if not state:
            _refuse("deleted" if gone else "unknown", episode_id)
        return view_of(state, intents, shelf_of(episode_id, records, names, bodies), events)

    async def num_in_flight(self, episode_id: str) -> int:
        known, count, gone = await self._redis.read_at_once(
            ("EXISTS", self._keys.part(episode_id, "m")),
            ("HLEN", self._keys.part(episode_id, "i")),
            ("EXISTS", self._keys.tombstone(episode_id)),
        )
        if not known:
            _refuse("deleted" if gone else "unknown", episode_id)
        return count

    async def add_event(self, episode_id: str, event: Event) -> None:
        packed = msgspec.msgpack.encode(event)
        word = await scripts.add_event(self._redis.control, self._keys, episode_id, packed)
        if word != "ok":
            _refuse(word, episode_id)

    async def expire(self, episode_id: str, after_ms: int) -> None:
        word = await scripts.expire(self._redis.control, self._keys, episode_id, after_ms)
        if word != "ok":
            raise Conflict(f"Episode {episode_id} is {word}; only a sealed one may expire.")

    async def delete(self, episode_id: str) -> None:
        await scripts.delete(self._redis.control, self._keys, episode_id)

    async def take_place(self, place: Place, quota: Quota, now_ms: int) -> Refusal | None:
        try:
            return await quotas.take_place(self._redis.hurried, self._keys, place, quota, now_ms)
        except OutOfMemoryError as error:
            raise _full() from error

    async def give_back(self, place: Place, num_tokens: int, now_ms: int) -> bool:
        return await quotas.give_back(self._redis.control, self._keys, place, num_tokens, now_ms)

    async def heartbeat(self, worker: str, ttl_ms: int) -> None:
        await scripts.heartbeat(self._redis.control, self._keys, worker, ttl_ms)

    async def due_calls(self, now_ms: int) -> list[tuple[str, str]]:
        scored = await self._redis.read("ZRANGE", self._keys.due, 0, -1, "WITHSCORES")
        calls = [(*member.decode().split(" ", 2), float(deadline)) for member, deadline in pairs(scored)]
        workers = sorted({worker for _, _, worker, _ in calls}) if self._redis.is_settled else []
        alive = await self._redis.read_all(*(("EXISTS", self._keys.worker(worker)) for worker in workers))
        dead = {worker for worker, is_alive in zip(workers, alive, strict=True) if not is_alive}
        return [(episode, call) for episode, call, worker, deadline in calls if deadline <= now_ms or worker in dead]

    async def finishing(self) -> list[str]:
        return sorted(episode.decode() for episode in await self._redis.read("SMEMBERS", self._keys.finishing))

    async def _append(self, call: Call, note: Note | None, held: Known | None = None, *, lost: bool = False) -> str:
        """Record a call: find what the episode holds of it, unless that is known, then store the rest in one script."""
        run = self._redis.patient()
        packed = hashed_ids(call.prompt_ids)
        chain = Chain(episode_key(call.episode_id)).extend_packed(packed)
        contents = contents_of(call)
        if held is None:
            held = await self._look(run, call.episode_id, chain, packed, (*contents.own, *contents.messages))
        answers = [choice.sampled_ids for choice in call.choices]
        told, entries = tell(chain, call.prompt_ids, answers, held.places, packed)
        ending = scripts.Ending(
            episode_id=call.episode_id,
            call_id=call.call_id,
            record=record_of(call, told, contents, packed),
            own=contents.own,
            messages=contents.messages,
            bodies=contents.packed(self._compressor, held.bodies),
            entries=tuple(entries),
            ended_ms=call.ended_ms,
            note=claims.packed_note(self._keys, call, note),
            lost=lost,
        )
        word, position = await scripts.end_call(run, self._keys, ending)
        if word == "missing":  # what was found a moment ago is damaged or gone: send every body
            ending = msgspec.structs.replace(ending, bodies=contents.packed(self._compressor))
            word, position = await scripts.end_call(run, self._keys, ending)
        if word == "ok":
            self._local.note(call.episode_id, position, ending.entries, ending.bodies)
        return word

    async def _look(
        self, run: scripts.Run, episode_id: str, chain: Chain, packed: bytes, wanted: tuple[bytes, ...]
    ) -> Known:
        """Ask Redis what the episode holds that a call can be told by: of its prompt, as packed, and of the bodies
        with these digests."""
        located = await scripts.locate(run, self._keys, episode_id, chain.digests, wanted)
        held = Known()
        if located.place is not None:
            held.places.update(dict.fromkeys(chain.digests[: located.num_blocks], located.place))
        pieces = chunks(chain.key, packed, located.num_blocks * BLOCK_IDS)
        held.places.update(await scripts.find_chunks(run, self._keys, episode_id, [piece.digest for piece in pieces]))
        held.bodies.update(wanted)
        held.bodies.difference_update(wanted[number] for number in located.missing)
        return held

    def _own(self, work: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
        """Run it to its end whoever cancels; `close` waits for it."""
        task = asyncio.create_task(work)
        self._owned.add(task)
        task.add_done_callback(self._disown)
        return task

    def _disown(self, task: asyncio.Task[Any]) -> None:
        """The caller hears of a failure too, if it still waits."""
        self._owned.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.warning("A call could not be recorded: %s", error)


def _full() -> Unavailable:
    return Unavailable("Redis is at maxmemory: no new calls until episodes are archived, or maxmemory is raised.")


def _refuse(word: str, episode_id: str) -> NoReturn:
    """The error of the tree for what a script refused with."""
    match word:
        case "deleted":
            raise Gone(f"Episode {episode_id} was deleted; its id is never used again.")
        case "ended":
            raise Gone(f"Episode {episode_id} has ended; open a new one.")
        case "recorded":
            raise Conflict("This call id is recorded already; give each call an id of its own.")
        case _:
            raise NotFound(f"There is no open episode {episode_id}; create one with POST /v1/episodes.")
