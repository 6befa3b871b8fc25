"""The episode store in Redis: what every gateway worker shares, and what an acknowledged call survives in.

Each promise of `store.py` is one script of `redis_scripts.py`; here are the bytes it carries, the time it may take and
the errors its words become. A new call is refused quickly when Redis does not answer; a call that ends is repeated
until it is recorded or its time is up, also if its caller left. Two links: reads of whole episodes do not stand in the
way of calls. Redis Cluster is not supported: scripts touch keys of an episode and global ones together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, NoReturn, TypeVar

import msgspec
from redis.exceptions import NoScriptError, OutOfMemoryError, ResponseError

from tracker import redis_scripts as scripts
from tracker.deltas import BLOCK_IDS, Chain, chunks, episode_key, index_entries, parts
from tracker.errors import Conflict, Gone, NotFound, SettingsError, Unavailable
from tracker.intents import lost_call
from tracker.records import contents_of, record_of
from tracker.redis_keys import RedisKeys
from tracker.redis_link import Command, RedisLink, Unsent
from tracker.redis_reading import head_of, intent_of, pairs, shelf_of, view_of
from tracker.redis_strength import WANTED, check_durability, check_server, parse_info
from tracker.store import Begun, EpisodeView, Routing
from tracker.types import Call, EpisodeHead, EpisodeState, EpisodeStatus, Event, Intent, Record

ResultT = TypeVar("ResultT")
logger = logging.getLogger(__name__)


class Patience(Record, frozen=True):
    """How long each kind of request waits for Redis."""

    begin_s: float = 0.09
    """A new call, and readiness: the agent hears of it within 100 ms."""
    control_s: float = 5.0
    """Opening, finishing, reading."""
    end_s: float = 10.0
    """A call that ends: it is sent again on new connections for this long."""
    stall_s: float = 1.0
    """A connection on which nothing comes for this long is given up."""


class RedisStore:
    """An `EpisodeStore` in a Redis of version 7.0 or later."""

    def __init__(
        self, url: str, prefix: str = "hone", *, strict: bool = True, patience: Patience | None = None
    ) -> None:
        self._patience = patience or Patience()
        self._keys = RedisKeys(prefix)
        self._strict = strict
        self._calls = RedisLink(url, stall_timeout_s=self._patience.stall_s)
        self._reads = RedisLink(url, stall_timeout_s=self._patience.control_s)
        self._checked_connect = 0
        self._owned: set[asyncio.Task[Any]] = set()

    @classmethod
    async def connect(
        cls, url: str, prefix: str = "hone", *, strict: bool = True, patience: Patience | None = None
    ) -> RedisStore:
        """A store whose links run in this event loop. Raises `Unavailable` or `SettingsError`, as `ping` does."""
        store = cls(url, prefix, strict=strict, patience=patience)
        store._calls.start()
        store._reads.start()
        try:
            await store._check(store._patience.control_s)
            sources = (("SCRIPT", "LOAD", script.source) for script in scripts.ALL)
            await store._calls.ask(*sources, timeout_s=store._patience.control_s)
        except BaseException:
            await store.close()
            raise
        return store

    async def ping(self) -> None:
        await self._check(self._patience.begin_s)

    async def close(self) -> None:
        """Wait for the calls that are being recorded, then close both links."""
        if self._owned:
            await asyncio.wait(self._owned)
        await self._calls.close()
        await self._reads.close()

    async def set_routing(self, policy: str, routing: Routing) -> None:
        await scripts.set_routing(self._control, self._keys, policy, routing)

    async def get_routing(self, policy: str) -> Routing:
        fields = await self._read("HMGET", self._keys.routing(policy), "active", "oldest", "withdrawn")
        active, oldest, withdrawn = fields
        return Routing(
            active=int(active or 0),
            oldest=int(oldest or 0),
            withdrawn=tuple(int(version) for version in (withdrawn or b"").split(b",") if version),
        )

    async def pins(self, policy: str) -> dict[int, int]:
        fields = await self._read("HGETALL", self._keys.pins(policy))
        return {int(version): int(count) for version, count in pairs(fields)}

    async def open(self, head: EpisodeHead) -> None:
        try:
            word = await scripts.open_episode(self._control, self._keys, head)
        except OutOfMemoryError as error:
            raise _full() from error
        if word == "deleted":
            _refuse(word, head.episode_id)

    async def head(self, episode_id: str) -> EpisodeHead:
        head, gone = await self._read_all(
            ("HGET", self._keys.part(episode_id, "m"), "head"), ("EXISTS", self._keys.tombstone(episode_id))
        )
        if head is None:
            _refuse("deleted" if gone else "unknown", episode_id)
        return head_of(head)

    async def begin_call(self, intent: Intent, pin: str, engine: str | None) -> Begun:
        """Where Redis does not say whether the intent was written, it is taken back as soon as Redis answers."""
        try:
            begun = await scripts.begin_call(self._hurried, self._keys, intent, pin, engine)
        except OutOfMemoryError as error:
            raise _full() from error
        except Unsent:
            raise
        except (Unavailable, asyncio.CancelledError):
            self._own(scripts.forget_call(self._patient(), self._keys, intent))
            raise
        if isinstance(begun, str):
            _refuse(begun, intent.episode_id)
        return begun

    async def end_call(self, call: Call) -> bool:
        """Goes on if its caller is cancelled: what an engine did is recorded."""
        word = await asyncio.shield(self._own(self._append(call, lost=False)))
        return word in ("ok", "known")

    async def abandon_call(self, episode_id: str, call_id: str, at_ms: int) -> bool:
        stored = await self._read("HGET", self._keys.part(episode_id, "i"), call_id)
        if stored is None:
            return False
        call = lost_call(intent_of(stored), at_ms)
        return await asyncio.shield(self._own(self._append(call, lost=True))) == "ok"

    async def finish(self, episode_id: str, status: EpisodeStatus) -> EpisodeState:
        word, value = await scripts.finish(self._control, self._keys, episode_id, status)
        if word == "other":
            raise Conflict(f"Episode {episode_id} ended as {value} already; it cannot end as {status}.")
        if word != "ok":
            _refuse(word, episode_id)
        return EpisodeState(value)

    async def seal(self, episode_id: str) -> bool:
        word = await scripts.seal(self._control, self._keys, episode_id)
        if word not in ("sealed", "waiting"):
            _refuse(word, episode_id)
        return word == "sealed"

    async def view(self, episode_id: str) -> EpisodeView:
        m, i, c, k, _, t, e = self._keys.episode(episode_id)
        tombstone = self._keys.tombstone(episode_id)
        commands: list[Command] = [("HGETALL", m), ("HGETALL", i), ("LRANGE", c, 0, -1), ("HGETALL", k)]
        commands += [("HGETALL", t), ("LRANGE", e, 0, -1), ("EXISTS", tombstone)]
        state, intents, records, names, bodies, events, gone = await self._read_at_once(*commands)
        if not state:
            _refuse("deleted" if gone else "unknown", episode_id)
        return view_of(state, intents, shelf_of(episode_id, records, names, bodies), events)

    async def num_in_flight(self, episode_id: str) -> int:
        known, count, gone = await self._read_at_once(
            ("EXISTS", self._keys.part(episode_id, "m")),
            ("HLEN", self._keys.part(episode_id, "i")),
            ("EXISTS", self._keys.tombstone(episode_id)),
        )
        if not known:
            _refuse("deleted" if gone else "unknown", episode_id)
        return count

    async def add_event(self, episode_id: str, event: Event) -> None:
        packed = msgspec.msgpack.encode(event)
        word = await scripts.add_event(self._control, self._keys, episode_id, packed)
        if word != "ok":
            _refuse(word, episode_id)

    async def expire(self, episode_id: str, after_ms: int) -> None:
        word = await scripts.expire(self._control, self._keys, episode_id, after_ms)
        if word != "ok":
            raise Conflict(f"Episode {episode_id} is {word}; only a sealed one may expire.")

    async def delete(self, episode_id: str) -> None:
        await scripts.delete(self._control, self._keys, episode_id)

    async def heartbeat(self, worker: str, ttl_ms: int) -> None:
        await scripts.heartbeat(self._control, self._keys, worker, ttl_ms)

    async def due_calls(self, now_ms: int) -> list[tuple[str, str]]:
        scored = await self._read("ZRANGE", self._keys.due, 0, -1, "WITHSCORES")
        calls = [(*member.decode().split(" ", 2), float(deadline)) for member, deadline in pairs(scored)]
        workers = sorted({worker for _, _, worker, _ in calls})
        alive = await self._read_all(*(("EXISTS", self._keys.worker(worker)) for worker in workers))
        dead = {worker for worker, is_alive in zip(workers, alive, strict=True) if not is_alive}
        return [(episode, call) for episode, call, worker, deadline in calls if deadline <= now_ms or worker in dead]

    async def finishing(self) -> list[str]:
        return sorted(episode.decode() for episode in await self._read("SMEMBERS", self._keys.finishing))

    async def _append(self, call: Call, *, lost: bool) -> str:
        """Record a call: find what the episode holds of it, then store the rest in one script."""
        run, key = self._patient(), episode_key(call.episode_id)
        chain = Chain(key).extend(call.prompt_ids)
        contents = contents_of(call)
        wanted = (*contents.own, *contents.messages)
        located = await scripts.locate(run, self._keys, call.episode_id, chain.digests, wanted)
        pieces = chunks(key, call.prompt_ids, located.num_blocks * BLOCK_IDS)
        places = await self._places(call.episode_id, [piece.digest for piece in pieces])
        told = parts(call.prompt_ids, located.place, pieces, places)
        answers = [choice.sampled_ids for choice in call.choices]
        ending = scripts.Ending(
            episode_id=call.episode_id,
            call_id=call.call_id,
            record=record_of(call, told, contents),
            own=contents.own,
            messages=contents.messages,
            bodies={wanted[n]: contents.bodies[wanted[n]] for n in located.missing},
            entries=tuple(index_entries(chain, located.num_blocks, told, call.prompt_ids, answers)),
            lost=lost,
        )
        return await scripts.end_call(run, self._keys, ending)

    async def _places(self, episode_id: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Where chunks lie that the episode holds already."""
        if not digests:
            return {}
        command = ("HMGET", self._keys.part(episode_id, "b"), *digests)
        [places] = await self._calls.ask(command, timeout_s=self._patience.end_s, repeat_s=self._patience.end_s)
        return {digest: place for digest, place in zip(digests, places, strict=True) if place is not None}

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

    async def _hurried(self, script: scripts.Script, keys: Sequence[str], arguments: Sequence[scripts.Argument]) -> Any:
        return await self._run(script, keys, arguments, self._patience.begin_s, None)

    async def _control(self, script: scripts.Script, keys: Sequence[str], arguments: Sequence[scripts.Argument]) -> Any:
        return await self._run(script, keys, arguments, self._patience.control_s, None)

    def _patient(self) -> scripts.Run:
        """Repeats until the time of this one call is up, over all scripts it takes."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._patience.end_s

        async def run(script: scripts.Script, keys: Sequence[str], arguments: Sequence[scripts.Argument]) -> Any:
            left_s = max(0.0, until_s - loop.time())
            return await self._run(script, keys, arguments, left_s, left_s)

        return run

    async def _run(
        self,
        script: scripts.Script,
        keys: Sequence[str],
        arguments: Sequence[scripts.Argument],
        timeout_s: float,
        repeat_s: float | None,
    ) -> Any:
        """Run a script by its digest; send its source where Redis does not know it (a new server, SCRIPT FLUSH)."""
        operands = (len(keys), *keys, *arguments)
        started_s = asyncio.get_running_loop().time()
        try:
            [reply] = await self._calls.ask(
                ("EVALSHA", script.digest, *operands), timeout_s=timeout_s, repeat_s=repeat_s
            )
        except NoScriptError:
            left_s = max(0.0, timeout_s - (asyncio.get_running_loop().time() - started_s))
            repeat_s = left_s if repeat_s is not None else None
            [reply] = await self._calls.ask(("EVAL", script.source, *operands), timeout_s=left_s, repeat_s=repeat_s)
        return reply

    async def _read(self, *command: str | bytes | int) -> Any:
        [reply] = await self._read_all(command)
        return reply

    async def _read_all(self, *commands: Command) -> list[Any]:
        if not commands:
            return []
        return await self._reads.ask(*commands, timeout_s=self._patience.control_s)

    async def _read_at_once(self, *commands: Command) -> list[Any]:
        """Replies that all tell of the same moment."""
        return (await self._read_all(("MULTI",), *commands, ("EXEC",)))[-1]

    async def _check(self, timeout_s: float) -> None:
        """Whether Redis answers; on a new connection also whether it is still strong enough."""
        await self._calls.ask(("PING",), timeout_s=timeout_s)
        connect = self._calls.num_connects
        if connect == self._checked_connect:
            return
        [info] = await self._calls.ask(("INFO", "server"), timeout_s=timeout_s)
        check_server(parse_info(info.decode()))
        if self._strict:
            check_durability(await self._config(timeout_s))
        self._checked_connect = connect

    async def _config(self, timeout_s: float) -> dict[str, str]:
        try:
            [config] = await self._calls.ask(("CONFIG", "GET", *WANTED), timeout_s=timeout_s)
        except ResponseError as error:
            raise SettingsError(
                f"Redis does not tell its settings ({error}), so what it would lose is unknown; let the user of "
                "HONE_REDIS_URL run CONFIG GET."
            ) from error
        return {name.decode(): value.decode() for name, value in pairs(config)}


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
