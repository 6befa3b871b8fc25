"""The engines behind the gateway: which are fit for calls, and under which name each serves a version.

An engine gets calls only after it was seen to answer, to score the distribution it samples from, and to serve every
live version; one that was away is brought up to date first. An episode stays on its engine while that lives, for its
prefix cache is there; other calls are spread. Which versions are live is decided in `hotswap.py`, what an engine is
asked to prove in `inspection.py`; how an agent's call is sent is left to `upstream.py`.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from gateway.engine_api import SILENT, EngineApi, ModelCard
from gateway.inspection import check_exact, check_scoring, recognise
from gateway.scoring import Scoring
from tracker.errors import Conflict, HoneError, SettingsError, Unavailable, UpstreamFailed
from tracker.settings import PolicySettings
from tracker.types import Probe, Record

LOG: Final = logging.getLogger("hone.engines")
UNREACHABLE: Final = "it refuses connections"


class Fitness(enum.StrEnum):
    """Whether an engine may get calls."""

    DOWN = "down"
    REFUSED = "refused"
    """It answers, and nothing it says could be trained on."""
    READY = "ready"


class EngineState(Record, frozen=True, omit_defaults=False):
    """What is known of one engine."""

    url: str
    fitness: Fitness = Fitness.DOWN
    detail: str = "not asked yet"
    scoring: Scoring = Scoring.UNKNOWN
    bases: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """policy -> the name under which the engine serves its base model."""
    adapters: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """Name -> path of each adapter it lists."""
    is_silent: bool = False
    """It did not answer the last look in time: busy once, down if it happens again."""


class Serving(Record, frozen=True):
    """A version as engines know it: its adapter's name, where it lies and what it is. Version 0 has no adapter."""

    policy: str
    version: int
    name: str = ""
    path: str = ""
    digest: str = ""
    probe: Probe | None = None
    """What it is recognised by."""


class Placement(Record, frozen=True):
    """Where a call goes."""

    engine: str
    """Root URL."""
    model: str
    """The name to ask for there."""
    digest: str
    """SHA-256 of the adapter, empty for version 0."""


class EnginePool:
    """All engines, by root URL."""

    def __init__(self, urls: Sequence[str], policies: Sequence[PolicySettings], api: EngineApi) -> None:
        self._api = api
        self._policies = tuple(policies)
        self._states = {url: EngineState(url=url) for url in urls}
        self._locks = {url: asyncio.Lock() for url in urls}
        self._live: tuple[Serving, ...] = ()
        self._in_flight: Counter[tuple[str, str]] = Counter()
        self._expected: Counter[str] = Counter()
        """Calls that are on their way to an engine: their intents are being written."""
        self._turns = itertools.count(1)
        self._last_turns = dict.fromkeys(urls, 0)
        """When each was last chosen or used, in turns: equally busy engines take turns."""

    @property
    def api(self) -> EngineApi:
        return self._api

    def states(self) -> tuple[EngineState, ...]:
        return tuple(self._states.values())

    def ready(self) -> tuple[EngineState, ...]:
        return tuple(state for state in self._states.values() if state.fitness is Fitness.READY)

    def base_of(self, url: str, policy: str) -> str:
        """The name under which an engine serves a policy's base model."""
        return self._states[url].bases[policy]

    def num_in_flight(self, model: str) -> int:
        """Calls of this worker that a model name is answering now, on all engines."""
        return sum(count for (_, name), count in self._in_flight.items() if name == model)

    def num_in_flight_at(self, url: str) -> int:
        """Calls of this worker that an engine is answering now."""
        return sum(count for (engine, _), count in self._in_flight.items() if engine == url)

    def expect(self, url: str, number: int = 1) -> None:
        """Count a call that was given an engine and is not there yet, so that those that begin with it go elsewhere;
        -1 takes it back."""
        self._expected[url] += number

    def begin(self, placement: Placement) -> None:
        """Count a call while it runs, so that load is spread and its version is not retired."""
        self._in_flight[placement.engine, placement.model] += 1
        self._last_turns[placement.engine] = next(self._turns)

    def end(self, placement: Placement) -> None:
        """A call that was counted is over."""
        key = (placement.engine, placement.model)
        self._in_flight[key] -= 1
        if not self._in_flight[key]:
            del self._in_flight[key]

    def candidates(self, policy: str) -> tuple[str, ...]:
        """Where a call of a policy may go, best first: fit engines, the least busy first; else any that may come back.

        Raises `Unavailable` if there is none. The best is taken to be chosen: the next call is offered another first.
        """
        urls = self._order(policy)
        self._last_turns[urls[0]] = next(self._turns)
        return urls

    async def place(self, serving: Serving, preferred: str | None, *, without: Collection[str] = ()) -> Placement:
        """The engine and the name for a call; the preferred engine as long as it is fit, never one of `without`.

        An engine that is down is asked once more before the call is given up (`UpstreamFailed`); one that does not
        list the version is made to load it. Where that fails the next one is asked.
        """
        if preferred is not None and preferred not in without and self._serves(preferred, serving):
            return await self._place_at(preferred, serving)
        urls = [url for url in self._order(serving.policy) if url not in without]
        order = sorted(urls, key=lambda url: url != preferred)
        failed: HoneError = UpstreamFailed("No other engine is fit for the call.")
        for url in order:
            try:
                return await self._place_at(url, serving)
            except (UpstreamFailed, SettingsError) as error:
                failed = error
        raise failed

    def has_other(self, policy: str, without: Collection[str]) -> bool:
        """Whether another engine is fit for calls of a policy."""
        return any(policy in state.bases and state.url not in without for state in self.ready())

    def lost(self, url: str) -> None:
        """It refused a connection: it gets no more calls until it was looked at."""
        self._note(EngineState(url=url, fitness=Fitness.DOWN, detail=UNREACHABLE))

    async def has_forgotten(self, placement: Placement) -> bool:
        """Whether an engine serves nothing under a name any more: it was restarted between two looks."""
        cards = await self._api.list_models(placement.engine)
        self._update_adapters(placement.engine, adapters_of(cards))
        return all(card.id != placement.model for card in cards)

    async def look(self, live: Sequence[Serving]) -> None:
        """See to every engine: is it there, fit, and does it serve exactly the live versions."""
        self._live = tuple(serving for serving in live if serving.version)
        await asyncio.gather(*(self._look_or_note(url) for url in self._states))

    async def look_at(self, url: str) -> EngineState:
        """Ask one engine and bring it up to date; raises `UpstreamFailed`, and `SettingsError` if it is not fit."""
        async with self._locks[url]:
            before = self._states[url]
            try:
                after = await self._look(before)
            except UpstreamFailed as error:
                busy = error.code == SILENT and before.fitness is Fitness.READY and not before.is_silent
                down = EngineState(url=url, fitness=Fitness.DOWN, detail=error.message)
                self._note(msgspec.structs.replace(before, is_silent=True) if busy else down)
                raise
            except SettingsError as error:
                self._note(EngineState(url=url, fitness=Fitness.REFUSED, detail=error.message))
                raise
            self._note(after)
            return after

    async def load(self, url: str, serving: Serving) -> None:
        """Load a version and see that the engine lists it with our path; at once done if it does already."""
        async with self._locks[url]:
            said = ""
            adapters = adapters_of(await self._api.list_models(url))
            if adapters.get(serving.name) != serving.path:
                said = await self._api.load(url, serving.name, serving.path)
                adapters = adapters_of(await self._api.list_models(url))
            self._update_adapters(url, adapters)
        if adapters.get(serving.name) != serving.path:
            listed = adapters.get(serving.name)
            seen = f"it lists another path, {listed}" if listed else f"it does not list it; it said: {said}"
            raise UpstreamFailed(f"The engine at {url} did not load {serving.name}: {seen}")

    async def unload(self, url: str, name: str) -> None:
        """Drop an adapter from one engine."""
        async with self._locks[url]:
            await self._api.unload(url, name)
            rest = {known: path for known, path in self._states[url].adapters.items() if known != name}
            self._update_adapters(url, rest)

    def _order(self, policy: str) -> tuple[str, ...]:
        fit = [state for state in self.ready() if policy in state.bases]
        if len(fit) == 1:
            return (fit[0].url,)
        found = fit or [state for state in self._states.values() if state.fitness is Fitness.DOWN]
        if not found:
            reasons = "; ".join(f"{state.url}: {state.detail or 'another base model'}" for state in self.states())
            raise Unavailable(f"No engine is fit for calls of policy {policy}. {reasons}")
        urls = (state.url for state in found)
        return tuple(sorted(urls, key=lambda url: (self._num_calls(url), self._last_turns[url])))

    def _num_calls(self, url: str) -> int:
        return self.num_in_flight_at(url) + self._expected[url]

    def _serves(self, url: str, serving: Serving) -> bool:
        """Whether an engine needs no look and no load to answer with this version, so that no other has to be found."""
        state = self._states.get(url)
        if state is None or state.fitness is not Fitness.READY or serving.policy not in state.bases:
            return False
        return not serving.version or state.adapters.get(serving.name) == serving.path

    async def _place_at(self, url: str, serving: Serving) -> Placement:
        state = self._states[url]
        if state.fitness is not Fitness.READY:
            state = await self.look_at(url)
        model = serving.name if serving.version else state.bases.get(serving.policy, "")
        if not model or serving.policy not in state.bases:
            raise UpstreamFailed(f"The engine at {url} does not serve the base model of policy {serving.policy}.")
        if serving.version and state.adapters.get(serving.name) != serving.path:
            await self.load(url, serving)
        return Placement(engine=url, model=model, digest=serving.digest)

    async def _look_or_note(self, url: str) -> None:
        try:
            await self.look_at(url)
        except (UpstreamFailed, SettingsError):
            return  # noted in its state, which readiness and GET /v1/engines show

    async def _look(self, before: EngineState) -> EngineState:
        cards = await self._api.list_models(before.url)
        bases = resolve_bases(cards, self._policies)
        adapters = adapters_of(cards)
        scoring = before.scoring
        if before.fitness is not Fitness.READY:
            scoring = await check_scoring(self._api, before.url, next(iter(bases.values())))
            await check_exact(self._api, before.url, [one for one in self._policies if one.name in bases])
        for serving in self._live:
            if serving.policy in bases:
                adapters = await self._bring_in(before, serving, adapters)
        return EngineState(
            url=before.url, fitness=Fitness.READY, detail="", scoring=scoring, bases=bases, adapters=adapters
        )

    async def _bring_in(self, before: EngineState, serving: Serving, adapters: dict[str, str]) -> dict[str, str]:
        """See that a live version is served; one that was just loaded, or an engine that was away, has to prove it."""
        is_there = adapters.get(serving.name) == serving.path
        if is_there and before.fitness is Fitness.READY:
            return adapters
        if not is_there:
            await self._api.load(before.url, serving.name, serving.path)
            adapters = adapters_of(await self._api.list_models(before.url))
        if adapters.get(serving.name) != serving.path:
            raise UpstreamFailed(f"The engine at {before.url} does not load {serving.name}.")
        try:
            await recognise(self._api, before.url, serving.name, serving.probe)
        except Conflict as error:
            raise UpstreamFailed(f"{serving.name}: {error.message}") from error
        return adapters

    def _update_adapters(self, url: str, adapters: Mapping[str, str]) -> None:
        self._states[url] = msgspec.structs.replace(self._states[url], adapters=dict(adapters))

    def _note(self, state: EngineState) -> None:
        before = self._states[state.url]
        if (before.fitness, before.detail) != (state.fitness, state.detail):
            LOG.log(
                logging.INFO if state.fitness is Fitness.READY else logging.WARNING,
                "engine %s is %s%s",
                state.url,
                state.fitness,
                f": {state.detail}" if state.detail else "",
            )
        self._states[state.url] = state


def adapters_of(cards: Sequence[ModelCard]) -> dict[str, str]:
    """Name -> path of the adapters in a list of models."""
    return {card.id: card.root or "" for card in cards if card.parent}


def resolve_bases(cards: Sequence[ModelCard], policies: Sequence[PolicySettings]) -> dict[str, str]:
    """policy -> the engine's name for its base: the name itself, the name of its path, or the only one there is.

    Raises `SettingsError` if the engine serves no policy's base model.

    >>> resolve_bases([ModelCard(id="b", root="/m")], [PolicySettings(name="solver", model="/m")])
    {'solver': 'b'}
    """
    bases = [card for card in cards if not card.parent]
    if not cards:
        return {policy.name: policy.model for policy in policies}
    found: dict[str, str] = {}
    for policy in policies:
        named = [card.id for card in bases if card.id == policy.model]
        rooted = [card.id for card in bases if card.root == policy.model]
        only = [bases[0].id] if len(bases) == 1 and len(policies) == 1 else []
        if named or rooted or only:
            found[policy.name] = (named or rooted or only)[0]
    if not found:
        listed = ", ".join(card.id for card in bases)
        raise SettingsError(f"HONE_POLICIES: the engine serves {listed or 'nothing'}; write one of these as the model.")
    return found
