"""Asks every engine of a policy what the trainer told of itself: its ids of texts and chats, its scores.

One engine after what it answers, all engines at once. The long prompts begin with each other, so an engine that keeps
prefixes reads each token once. An engine that goes away meanwhile is `Unavailable`: the trainer asks again. How
answers are judged is in `parity.py`; what follows is the trainer's to decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from gateway.engine_api import EngineApi
from gateway.engines import EnginePool, EngineState, Fitness
from gateway.parity import (
    Check,
    Expected,
    Finding,
    PointGap,
    PointScored,
    Rendered,
    gap_of,
    judge_scores,
    not_checked,
    told_difference,
)
from tracker.errors import Unavailable, UpstreamFailed
from tracker.evidence import first_difference
from tracker.types import Record

NO_SCORES = "the engine gives no alternatives by token id"


class Compared(Record, frozen=True, omit_defaults=False):
    """What was found at one engine."""

    engine: str
    model: str
    """The base model's name there."""
    is_up: bool
    checks: tuple[Check, ...]

    def differences(self) -> list[Check]:
        """What is not as the trainer has it."""
        return [check for check in self.checks if check.finding is Finding.DIFFERS]


async def compare(engines: EnginePool, policy: str, expected: Expected) -> tuple[Compared, ...]:
    """Every engine that serves the policy's base, and those of which nobody knows yet; `Unavailable` if none is up."""
    ready = [state for state in engines.ready() if policy in state.bases]
    if not ready:
        told = "; ".join(f"{state.url}: {state.detail or 'another base model'}" for state in engines.states())
        raise Unavailable(f"No engine of policy {policy} is up yet. {told}", retry_after_s=2)
    found = await asyncio.gather(*(_compared(engines.api, state, policy, expected) for state in ready))
    away = [state for state in engines.states() if state.fitness is not Fitness.READY]
    return (*found, *(_away(state) for state in away))


def refusal(found: Sequence[Compared]) -> str:
    """One line that names the first difference; empty where there is none."""
    differences = [(one, check) for one in found for check in one.differences()]
    if not differences:
        return ""
    one, check = differences[0]
    more = f" {len(differences) - 1} more differences were found." if len(differences) > 1 else ""
    return f"The engine at {one.engine} differs from the trainer in its {check.what}: {check.detail}.{more}"


def _away(state: EngineState) -> Compared:
    check = not_checked("everything", f"the engine is {state.fitness.value}: {state.detail}")
    return Compared(engine=state.url, model="", is_up=False, checks=(check,))


async def _compared(api: EngineApi, state: EngineState, policy: str, expected: Expected) -> Compared:
    asked = _Asked(api, state.url, state.bases[policy])
    try:
        ids = (*await asked.texts(expected), *await asked.chats(expected))
        checks = (*ids, *await asked.scores(expected))
    except UpstreamFailed as error:
        raise Unavailable(f"Engine {state.url} went away while it was compared: {error.message}") from error
    return Compared(engine=state.url, model=asked.model, is_up=True, checks=checks)


class _Asked:
    """One engine, asked one thing after the other."""

    def __init__(self, api: EngineApi, url: str, model: str) -> None:
        self._api = api
        self._url = url
        self.model = model

    async def texts(self, expected: Expected) -> tuple[Check, ...]:
        bodies = [(one, {"prompt": one.text, "add_special_tokens": True}) for one in expected.texts]
        return await self._rendered("tokenizer", bodies)

    async def chats(self, expected: Expected) -> tuple[Check, ...]:
        bodies: list[tuple[Rendered, dict[str, object]]] = []
        for one in expected.chats:
            body: dict[str, object] = {"messages": list(one.messages), "add_generation_prompt": True}
            bodies.append((one, body | ({"tools": list(one.tools)} if one.tools else {})))
        return await self._rendered("chat template", bodies)

    async def scores(self, expected: Expected) -> tuple[Check, ...]:
        """Short prompts first, and nothing that the engine has no room for."""
        room = await self._room()
        gaps: list[PointGap] = []
        for point in sorted(expected.points, key=lambda point: len(point.prompt_ids)):
            if room is not None and len(point.prompt_ids) >= room:
                break
            gap = await self._gap(point)
            if gap is None:
                return (not_checked("base weights, positions and dtype", NO_SCORES),)
            gaps.append(gap)
        return judge_scores(gaps, expected)

    async def _rendered(self, what: str, bodies: Sequence[tuple[Rendered, Mapping[str, object]]]) -> tuple[Check, ...]:
        """One check of all inputs: the first that differs, else what was not answered, else the same."""
        unanswered: list[str] = []
        for expected, body in bodies:
            try:
                found = await self._api.tokenize(self._url, {"model": self.model, **body})
            except UpstreamFailed as error:
                await self._still_there()
                unanswered.append(f"{expected.name}: {error.message}")
                continue
            place = first_difference(expected.token_ids, found)
            if place is not None:
                detail = told_difference(expected, found, place, await self._piece(found, place))
                return (Check(what=what, finding=Finding.DIFFERS, detail=detail),)
        num_same = len(bodies) - len(unanswered)
        same = Check(what=what, finding=Finding.SAME, detail=f"the ids of {num_same} inputs are equal")
        missed = [not_checked(what, line) for line in unanswered[:1]]
        return (*((same,) if num_same else ()), *missed) if bodies else (not_checked(what, "there is none"),)

    async def _gap(self, point: PointScored) -> PointGap | None:
        try:
            return gap_of(point, await self._api.score(self._url, self.model, point.prompt_ids, 1.0))
        except UpstreamFailed:
            await self._still_there()
            return None

    async def _piece(self, ids: Sequence[int], place: int) -> str:
        if place >= len(ids):
            return ""
        try:
            return await self._api.piece(self._url, self.model, ids[place])
        except UpstreamFailed:
            await self._still_there()
            return ""

    async def _room(self) -> int | None:
        """The most tokens of prompt and answer, where the engine tells."""
        cards = await self._api.list_models(self._url)
        return next((card.max_model_len for card in cards if card.id == self.model), None)

    async def _still_there(self) -> None:
        """What an engine that is there refuses is an answer; raises `UpstreamFailed` where it is gone."""
        await self._api.list_models(self._url)
