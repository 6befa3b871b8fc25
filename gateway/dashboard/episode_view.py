"""What the page of an episode shows: its calls as rows of a tree, its branches, its conversation, what is not trained.

Pure: a glance in, frozen records out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from markupsafe import Markup

from gateway.dashboard.chat import Turn, before_of, turn_of
from gateway.dashboard.glance import Glance
from gateway.dashboard.groups import SKIPS
from gateway.dashboard.lanes import lanes_of
from gateway.dashboard.steps import REASONS
from gateway.dashboard.strips import TRAINED, pieces_of
from tracker.exclusion import ChoiceKey
from tracker.lines import EpisodeLineage
from tracker.samples import Exclusion
from tracker.types import Call, GroupState, SkipReason

ROWS: Final = 100
TURNS: Final = 8
EXCLUSIONS: Final = 50
MAX_RAW_CHARS: Final = 200_000


@dataclass(frozen=True, slots=True)
class CallRow:
    """A call in the list."""

    call: Call
    lanes: Markup
    parent: Call | None
    branches: tuple[int, ...]
    num_prompt: int
    num_sampled: int
    reasons: tuple[str, ...]
    """Why choices of it are not trained, in words."""
    reward: float | None
    mean_logprob: float | None
    is_truncated: bool


@dataclass(frozen=True, slots=True)
class BranchView:
    """A path through the tree."""

    number: int
    policy: str
    num_calls: int
    num_tokens: int
    num_trained: int
    """Tokens that are trained in this branch: those of shared calls are trained in the first that has them."""
    leaf: Call
    line: str
    """Where it leaves another branch."""
    split_at: int | None


@dataclass(frozen=True, slots=True)
class TurnView:
    """A call of a branch with what was said in it."""

    call: Call
    turn: Turn
    after: Call | None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A choice that is not trained."""

    call: Call
    told: Exclusion
    why: str


@dataclass(frozen=True, slots=True)
class Fate:
    """Whether an episode was trained, and why not."""

    kind: str
    """`good`, `warn` or empty, as an alert has it."""
    line: str


def fate_of(lineage: EpisodeLineage, has_place: bool) -> Fate:
    """What became of an episode in training, in one sentence."""
    if any(one.state == GroupState.TRAINED for one in lineage.batches):
        return Fate("good", "It was trained.")
    if lineage.batches:
        return Fate("", "It is in a step that is being trained.")
    if lineage.group_id is None:
        return Fate("", "It has no place in a group, so nothing is trained on it.")
    if lineage.group_state == GroupState.SKIPPED:
        why = SKIPS[SkipReason(lineage.reason)] if lineage.reason else "no reason was given"
        return Fate("warn", f"It was not trained: {why}.")
    if not has_place:
        return Fate("warn", "It is not trained: it lost its place in its group.")
    if lineage.group_state == GroupState.OPEN:
        return Fate("", "It is not trained yet: its group is open.")
    return Fate("", "It is not trained yet: its group waits for the trainer.")


def call_rows(glance: Glance, start: int) -> list[CallRow]:
    """A part of the calls, in the order they began."""
    told, rewards = glance.told, glance.call_rewards
    by_id = {call.call_id: call for call in told.calls}
    lanes = lanes_of(told.calls, told.timeline, start, start + ROWS)
    branches = _branches_by_call(glance)
    return [
        CallRow(
            call=call,
            lanes=drawn,
            parent=by_id.get(told.timeline.parents.get(call.call_id) or ""),
            branches=branches.get(call.call_id, ()),
            num_prompt=told.num_prompt[call.call_id],
            num_sampled=sum(len(choice.sampled_ids) for choice in call.choices),
            reasons=reasons_of(glance, call),
            reward=rewards.get(call.call_id),
            mean_logprob=_mean([value for choice in call.choices for value in choice.logprobs]),
            is_truncated=any(choice.truncated for choice in call.choices),
        )
        for call, drawn in zip(told.calls[start : start + ROWS], lanes, strict=True)
    ]


def reasons_of(glance: Glance, call: Call) -> tuple[str, ...]:
    """Why choices of a call are not trained, each reason once."""
    excluded = glance.told.timeline.excluded
    keys = [(call.call_id, choice.index) for choice in call.choices] or [(call.call_id, 0)]
    return tuple(dict.fromkeys(why_of(excluded[key].value) for key in keys if key in excluded))


def why_of(reason: str) -> str:
    """A reason in words."""
    return REASONS.get(reason, reason.replace("_", " "))


def branch_views(glance: Glance) -> list[BranchView]:
    """Every branch."""
    told = glance.told
    by_id = {call.call_id: call for call in told.calls}
    views: list[BranchView] = []
    for number, path in enumerate(told.timeline.branches):
        leaf = by_id[path[-1][0]]
        split = told.splits[number]
        views.append(
            BranchView(
                number=number,
                policy=leaf.policy or "",
                num_calls=len(path),
                num_tokens=told.num_prompt[leaf.call_id] + _num_sampled(leaf, path[-1]),
                num_trained=sum(p.end - p.start for p in pieces_of(told, number) if p.kind == TRAINED),
                leaf=leaf,
                line=_split_line(glance, number),
                split_at=None if split is None else split.depth,
            )
        )
    return views


def turns_of(glance: Glance, branch: int, start: int) -> list[TurnView]:
    """A part of the conversation of a branch; of all calls where there is no branch."""
    return [turn_view(glance, call) for call in calls_of(glance, branch)[start : start + TURNS]]


def turn_view(glance: Glance, call: Call) -> TurnView:
    """A call with what was said in it."""
    before = before_of(call, glance.told.calls, glance.told.timeline.parents)
    return TurnView(call=call, turn=turn_of(call, before), after=before)


def calls_of(glance: Glance, branch: int) -> Sequence[Call]:
    """The calls of a branch, in order; all of them where there is none."""
    told = glance.told
    if not told.timeline.branches:
        return told.calls
    on_path = {key[0] for key in told.timeline.branches[branch]}
    return [call for call in told.calls if call.call_id in on_path]


def left_out(glance: Glance) -> list[LeftOut]:
    """Every choice that is not trained, in the order of the calls."""
    by_id = {call.call_id: call for call in glance.told.calls}
    return [
        LeftOut(
            call=by_id[key[0]],
            told=Exclusion(call_id=key[0], choice=key[1], reason=reason, num_tokens=_num_sampled(by_id[key[0]], key)),
            why=why_of(reason.value),
        )
        for key, reason in glance.told.timeline.excluded.items()
    ]


def branch_of(glance: Glance, call_id: str) -> int | None:
    """The first branch that a call is in."""
    return next(iter(_branches_by_call(glance).get(call_id, ())), None)


def raw_request(call: Call) -> str:
    """The request as it was sent, put together again."""
    try:
        rest: dict[str, msgspec.Raw] = msgspec.json.decode(call.request, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        rest = {}
    whole = {**rest, "messages": [msgspec.Raw(message) for message in call.messages]} if call.messages else rest
    return raw_json(msgspec.json.encode(whole))


def raw_json(raw: bytes) -> str:
    """JSON to be read, cut where it is very long."""
    try:
        text = msgspec.json.format(raw, indent=2).decode("utf-8", "replace")
    except msgspec.MsgspecError:
        text = raw.decode("utf-8", "replace")
    cut = len(text) - MAX_RAW_CHARS
    return text if cut <= 0 else f"{text[:MAX_RAW_CHARS]}\n… and {cut} more characters: GET …/timeline has them"


def _branches_by_call(glance: Glance) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for number, path in enumerate(glance.told.timeline.branches):
        for call_id in dict.fromkeys(key[0] for key in path):
            found.setdefault(call_id, []).append(number)
    return {call_id: tuple(numbers) for call_id, numbers in found.items()}


def _split_line(glance: Glance, number: int) -> str:
    split = glance.told.splits[number]
    if split is None:
        return "" if number == 0 else "shares no token with an earlier branch"
    theirs = "it ends" if split.theirs is None else f"it has id {split.theirs}"
    ours = "this one ends" if split.ours is None else f"this one has id {split.ours}"
    within = next((p for p in pieces_of(glance.told, split.branch) if p.start < split.depth < p.end), None)
    inside = f", inside the answer of call #{within.call.index}" if within is not None else ""
    return f"leaves branch {split.branch + 1} at token {split.depth:,}{inside}: {theirs} there, {ours}"


def _num_sampled(call: Call, key: ChoiceKey) -> int:
    return sum(len(choice.sampled_ids) for choice in call.choices if choice.index == key[1])


def _mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if math.isfinite(value)]
    return math.fsum(known) / len(known) if known else None
