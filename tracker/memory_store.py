"""The episode store in this process's memory: the promises of `store.py`, written as plainly as they can be.

For tests and for reading: what a Lua script does in `redis_scripts.py` stands here as a few lines of Python. One
process, nothing durable. Every method is one step of the event loop, so each is as atomic as a script.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from tracker.arms import canaries
from tracker.claims import Claim, Claimed, Note
from tracker.clock import Clock
from tracker.errors import Conflict, Gone, NotFound
from tracker.intents import fixed_version, lost_call
from tracker.memory_claims import MemoryClaims
from tracker.memory_quotas import MemoryQuotas
from tracker.quotas import Place, Quota, Refusal
from tracker.store import Begun, EpisodeView, Routing
from tracker.types import Call, EpisodeHead, EpisodeState, EpisodeStatus, Event, Intent


@dataclass(slots=True)
class _Episode:
    head: EpisodeHead
    state: EpisodeState = EpisodeState.OPEN
    status: EpisodeStatus | None = None
    engines: dict[str | None, str] = field(default_factory=dict[str | None, str])
    """policy -> the engine its calls go to."""
    next_index: int = 0
    pins: dict[str, int] = field(default_factory=dict[str, int])
    intents: dict[str, Intent] = field(default_factory=dict[str, Intent])
    calls: dict[str, Call] = field(default_factory=dict[str, Call])
    lost: set[str] = field(default_factory=set[str])
    events: list[Event] = field(default_factory=list[Event])
    expires_ms: int | None = None
    idle_ms: int | None = None
    mark: bytes = b""
    active_ms: int = 0
    """When a call last began or ended."""

    def is_idle(self, now_ms: int) -> bool:
        """Whether its time is up; never for an episode that was opened without one."""
        return self.idle_ms is not None and not self.intents and now_ms - self.active_ms >= self.idle_ms

    def held(self) -> set[tuple[str, int]]:
        """The versions that may not retire because of this episode: its pins, and those of calls in flight."""
        if self.state not in (EpisodeState.OPEN, EpisodeState.FINISHING):
            return set()
        in_flight = {(one.policy, one.version) for one in self.intents.values() if one.policy is not None}
        return in_flight | set(self.pins.items())


class MemoryStore:
    """An `EpisodeStore` that lives as long as the process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._episodes: dict[str, _Episode] = {}
        self._deleted: set[str] = set()
        self._routing: dict[str, Routing] = {}
        self._workers: dict[str, int] = {}
        self._claims = MemoryClaims(self._takes_claims, self._is_unknown)
        self._quotas = MemoryQuotas(lambda worker, now_ms: self._workers.get(worker, 0) <= now_ms)

    @property
    def num_waiting(self) -> int:
        return 0

    async def ping(self) -> None:
        """Memory always answers."""

    async def close(self) -> None:
        """Memory holds nothing open."""

    async def set_routing(self, policy: str, routing: Routing) -> None:
        self._routing[policy] = routing

    async def get_routing(self, policy: str) -> Routing:
        return self._routing.get(policy, Routing())

    async def pins(self, policy: str) -> dict[int, int]:
        held = (version for one in self._episodes.values() for name, version in one.held() if name == policy)
        return dict(Counter(held))

    async def claim(self, claim: Claim) -> Claimed:
        return self._claims.claim(claim)

    async def end_idle(self, episode_id: str, now_ms: int) -> bool:
        episode = self._get(episode_id)
        if episode.state is not EpisodeState.OPEN or not episode.is_idle(now_ms):
            return False
        episode.state, episode.status = EpisodeState.FINISHING, EpisodeStatus.OK
        return True

    async def open(self, head: EpisodeHead, idle_ms: int | None = None) -> None:
        if head.episode_id in self._deleted:
            raise Gone(f"Episode {head.episode_id} was deleted; its id is never used again.")
        opened = _Episode(head, idle_ms=idle_ms, active_ms=head.created_ms)
        self._episodes.setdefault(head.episode_id, opened)

    async def head(self, episode_id: str) -> EpisodeHead:
        return self._get(episode_id).head

    async def begin_call(self, intent: Intent, pin: str, engines: Sequence[str] | None, mark: bytes = b"") -> Begun:
        episode = self._get(intent.episode_id)
        known = episode.intents.get(intent.call_id)
        if known is not None:
            return Begun(
                index=known.index, version=known.version, engine=episode.engines.get(intent.policy), mark=episode.mark
            )
        if episode.state is not EpisodeState.OPEN:
            raise Gone(f"Episode {intent.episode_id} has ended; open a new one.")
        if intent.call_id in episode.calls:
            raise Conflict(f"Call {intent.call_id} is recorded already; give each call an id of its own.")
        version, repinned_from = self._pin(episode, intent.policy, pin)
        episode.mark = episode.mark or mark
        episode.active_ms = max(episode.active_ms, intent.started_ms)
        if engines and episode.engines.get(intent.policy) not in engines:
            episode.engines[intent.policy] = engines[0]
        begun = Begun(
            index=episode.next_index,
            version=version,
            repinned_from=repinned_from,
            engine=episode.engines.get(intent.policy),
            mark=episode.mark,
        )
        episode.next_index += 1
        episode.intents[intent.call_id] = msgspec.structs.replace(intent, index=begun.index, version=version)
        return begun

    async def end_call(self, call: Call, note: Note | None = None) -> bool:
        episode = self._find(call.episode_id)
        if episode is None:
            return False
        if call.call_id in episode.calls:
            return call.call_id not in episode.lost
        if episode.intents.pop(call.call_id, None) is None:
            return False
        episode.calls[call.call_id] = call
        episode.active_ms = max(episode.active_ms, call.ended_ms)
        if note is not None:
            self._claims.note(call, note)
        return True

    async def abandon_call(self, episode_id: str, call_id: str, at_ms: int) -> bool:
        episode = self._find(episode_id)
        intent = episode.intents.pop(call_id, None) if episode is not None else None
        if episode is None or intent is None:
            return False
        episode.lost.add(call_id)
        episode.active_ms = max(episode.active_ms, at_ms)
        episode.calls[call_id] = lost_call(intent, at_ms)
        return True

    async def finish(self, episode_id: str, status: EpisodeStatus) -> EpisodeState:
        episode = self._get(episode_id)
        if episode.state is EpisodeState.OPEN:
            episode.state, episode.status = EpisodeState.FINISHING, status
        elif episode.status is not status:
            raise Conflict(f"Episode {episode_id} ended as {episode.status} already; it cannot end as {status}.")
        return episode.state

    async def seal(self, episode_id: str) -> bool:
        episode = self._get(episode_id)
        if episode.state is EpisodeState.FINISHING and not episode.intents:
            episode.state = EpisodeState.SEALED
        return episode.state in (EpisodeState.SEALED, EpisodeState.ARCHIVED)

    async def view(self, episode_id: str) -> EpisodeView:
        episode = self._get(episode_id)
        return EpisodeView(
            head=episode.head,
            state=episode.state,
            status=episode.status,
            calls=tuple(sorted(episode.calls.values(), key=lambda call: call.index)),
            intents=tuple(sorted(episode.intents.values(), key=lambda intent: intent.index)),
            pins=dict(episode.pins),
            events=tuple(episode.events),
        )

    async def num_in_flight(self, episode_id: str) -> int:
        return len(self._get(episode_id).intents)

    async def add_event(self, episode_id: str, event: Event) -> None:
        self._get(episode_id).events.append(event)

    async def expire(self, episode_id: str, after_ms: int) -> None:
        episode = self._find(episode_id)
        if episode is None:
            return
        if episode.state not in (EpisodeState.SEALED, EpisodeState.ARCHIVED):
            raise Conflict(f"Episode {episode_id} is {episode.state}; only a sealed one may expire.")
        episode.state = EpisodeState.ARCHIVED
        episode.expires_ms = self._clock.now_ms() + after_ms

    async def delete(self, episode_id: str) -> None:
        self._episodes.pop(episode_id, None)
        self._deleted.add(episode_id)

    async def take_place(self, place: Place, quota: Quota, now_ms: int) -> Refusal | None:
        return await self._quotas.take_place(place, quota, now_ms)

    async def give_back(self, place: Place, num_tokens: int, now_ms: int) -> bool:
        return await self._quotas.give_back(place, num_tokens, now_ms)

    async def heartbeat(self, worker: str, ttl_ms: int) -> None:
        self._workers[worker] = self._clock.now_ms() + ttl_ms

    async def due_calls(self, now_ms: int) -> list[tuple[str, str]]:
        return [
            (intent.episode_id, intent.call_id)
            for episode in self._episodes.values()
            for intent in episode.intents.values()
            if intent.deadline_ms <= now_ms or self._workers.get(intent.worker, 0) <= self._clock.now_ms()
        ]

    async def finishing(self) -> list[str]:
        ending = (EpisodeState.FINISHING, EpisodeState.SEALED)
        return [episode_id for episode_id, one in self._episodes.items() if one.state in ending]

    def _find(self, episode_id: str) -> _Episode | None:
        episode = self._episodes.get(episode_id)
        if episode is None or episode.expires_ms is None or self._clock.now_ms() < episode.expires_ms:
            return episode
        del self._episodes[episode_id]
        return None

    def _takes_claims(self, episode_id: str, now_ms: int) -> bool:
        episode = self._find(episode_id)
        if episode is None or episode.state is not EpisodeState.OPEN or episode.idle_ms is None:
            return False
        return not episode.is_idle(now_ms)

    def _is_unknown(self, episode_id: str) -> bool:
        return self._find(episode_id) is None and episode_id not in self._deleted

    def _get(self, episode_id: str) -> _Episode:
        episode = self._find(episode_id)
        if episode is not None:
            return episode
        if episode_id in self._deleted:
            raise Gone(f"Episode {episode_id} was deleted; open a new one.")
        raise NotFound(f"There is no open episode {episode_id}; create one with POST /v1/episodes.")

    def _pin(self, episode: _Episode, policy: str | None, pin: str) -> tuple[int, int | None]:
        """The call's version, and the one it was pinned to before if that became too old or was withdrawn."""
        if policy is None:
            return 0, None
        fixed = fixed_version(episode.head, policy)
        routing = self._routing.get(policy, Routing())
        pinned = episode.pins.get(policy)
        repinned_from = None
        if fixed is not None:
            version = fixed
        elif pinned is not None and (pinned < routing.oldest or pinned in routing.withdrawn):
            version = routing.active
            repinned_from = pinned if pinned != version else None
        elif pinned is not None and pin != "call":
            version = pinned
        else:
            arm = canaries(episode.head).get(policy, 0)
            version = arm if arm > routing.active and arm not in routing.withdrawn else routing.active
        episode.pins[policy] = version
        return version, repinned_from
