"""Where the calls of an episode stop extending each other: the first token that differs, and on which side it stood.

A call that continues a conversation should begin with all ids of an earlier call, sampled ones included. Where it does
not, a new branch begins; this module says at which token, and what stood there before. Ids decide, never text; words
are only looked at to tell a conversation that goes on from one that begins. Pure; decoding is left to `rehearsal.py`.
"""

from __future__ import annotations

import enum
import struct
from bisect import bisect, insort
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, Final, cast

import msgspec

from gateway.message_fold import decode_json_value, encode_json
from tracker.exclusion import in_order
from tracker.timeline import grow
from tracker.types import Call, Record

NUM_SHOWN: Final = 8
"""Tokens before the place that are shown with it."""
_ID: Final = struct.Struct(">q")


class StepKind(enum.StrEnum):
    """How a call stands to the ones before it."""

    STARTS = "starts"
    """Another conversation."""
    EXTENDS = "extends"
    FORKS = "forks"
    """It asks again from a point that an earlier call had passed."""
    DRIFTS = "drifts"
    """It continues a conversation, and its tokens are not the ones of the call that it goes on from."""


class Place(Record, frozen=True):
    """Where two sequences part."""

    call_id: str
    """The earlier call that shares most."""
    position: int
    """Number of ids that are shared."""
    num_stored: int
    """Length of the earlier call, answer included."""
    in_answer: bool
    """Whether what differs had been sampled, rather than stood in the earlier prompt."""
    before: tuple[int, ...]
    """The last ids that are shared."""
    stored: tuple[int, ...]
    """What stood there, from the first id that differs on."""
    new: tuple[int, ...]
    """What stands there now; empty where the new prompt ends."""


class Step(Record, frozen=True):
    """One call of a policy."""

    call_id: str
    policy: str
    kind: StepKind
    place: Place | None = None
    """Of a fork and of a drift."""


def steps_of(calls: Iterable[Call]) -> tuple[Step, ...]:
    """How each call of an episode stands to those that began before it, in order; calls without ids are left out."""
    by_policy: defaultdict[str, list[Call]] = defaultdict(list)
    for call in in_order(calls):
        if call.policy is not None and call.prompt_ids:
            by_policy[call.policy].append(call)
    return tuple(step for policy, own in sorted(by_policy.items()) for step in _steps(policy, own))


def _steps(policy: str, ordered: Sequence[Call]) -> Iterable[Step]:
    parents = grow(_with_ids(ordered), {}).parents
    seen: list[bytes] = []
    owners: dict[bytes, Call] = {}
    earlier: dict[str, Call] = {}
    for call in ordered:
        packed = _packed(call.prompt_ids)
        place = _place(packed, seen, owners)
        kind = _kind(call, place, None if place is None else earlier[place.call_id], parents[call.call_id] is not None)
        kept = place if kind in (StepKind.FORKS, StepKind.DRIFTS) else None
        yield Step(call_id=call.call_id, policy=policy, kind=kind, place=kept)
        earlier[call.call_id] = call
        for choice in call.choices:
            sequence = packed + _packed(choice.sampled_ids)
            if sequence not in owners:
                insort(seen, sequence)
                owners[sequence] = call


def _kind(call: Call, place: Place | None, compared: Call | None, has_parent: bool) -> StepKind:
    """Decided by what is shared with the closest earlier call; `has_parent`: some earlier call is extended whole."""
    if place is None or compared is None:
        return StepKind.STARTS
    if place.position == place.num_stored:
        return StepKind.EXTENDS
    if place.new and _answers_in(call) - _answers_in(compared):
        return StepKind.DRIFTS
    return StepKind.FORKS if has_parent or not place.new else StepKind.STARTS


def _place(packed: bytes, seen: Sequence[bytes], owners: dict[bytes, Call]) -> Place | None:
    """Where it leaves the earlier sequence that it shares most with: in order of bytes, one of its two neighbours."""
    if not seen:
        return None
    at = bisect(seen, packed)
    closest = max(seen[max(0, at - 1) : at + 1], key=lambda sequence: _common(packed, sequence))
    position = _common(packed, closest)
    call, stored, new = owners[closest], _unpacked(closest), _unpacked(packed)
    return Place(
        call_id=call.call_id,
        position=position,
        num_stored=len(stored),
        in_answer=position >= len(call.prompt_ids),
        before=stored[max(0, position - NUM_SHOWN) : position],
        stored=stored[position : position + NUM_SHOWN],
        new=new[position : position + NUM_SHOWN],
    )


def _with_ids(calls: Iterable[Call]) -> list[Call]:
    """The calls with those of their choices that have ids."""
    return [
        msgspec.structs.replace(call, choices=tuple(choice for choice in call.choices if choice.sampled_ids))
        for call in calls
    ]


def _answers_in(call: Call) -> set[bytes]:
    """What the model is said to have said, in whatever dialect."""
    pieces: list[object] = [decode_json_value(raw) for raw in call.messages]
    objects = [cast("dict[str, Any]", piece) for piece in pieces if isinstance(piece, dict)]
    return {encode_json(piece) for piece in objects if _is_answer(piece)}


def _is_answer(piece: dict[str, Any]) -> bool:
    return piece.get("role") == "assistant" or piece.get("type") in ("function_call", "reasoning")


def _packed(ids: Sequence[int]) -> bytes:
    return struct.pack(f">{len(ids)}q", *ids)


def _unpacked(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f">{len(packed) // _ID.size}q", packed)


def _common(left: bytes, right: bytes) -> int:
    """Number of ids at the beginning that are equal."""
    pairs = zip(_unpacked(left), _unpacked(right), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
