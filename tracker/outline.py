"""A whole episode at a glance: its calls folded into trees without any prompt ever being spelled out.

A long episode says the same ids over and over: the last of 300 prompts holds nearly all the others. Here each id is
kept once, in one trie over all of the episode's sequences, built from prompts as they are told (`records.py`); the work
is near linear in the distinct tokens. The fold is `timeline.py`'s, and equal to what it says of the calls themselves.
What was read is not proven here: receipts need every prompt, and are checked in `evidence.py`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from tracker.deltas import Copy, Part
from tracker.errors import CorruptRecord
from tracker.exclusion import ChoiceKey, context_choices, exclusions, in_order
from tracker.records import Sketch
from tracker.timeline import Timeline, Tree, grow, included
from tracker.types import Call, Reason, Record, RunSettings

ROOT: Final = 0
NO_PLACE: Final = "It copies ids that are not there."
Place = tuple[int, int]
"""(node, depth): the sequence of `depth` ids that ends in this node, or above it where the node was split since."""


class Split(Record, frozen=True):
    """Where a branch leaves the branches before it."""

    branch: int
    """The first of those that it has the most ids in common with."""
    depth: int
    """How many ids they share: the first that differs stands at this offset."""
    theirs: int | None
    """The id that the other branch has there; `None` where it ends."""
    ours: int | None


class Outline(Record, frozen=True):
    """An episode, folded."""

    calls: tuple[Call, ...]
    """In the order they began, without their prompt ids."""
    timeline: Timeline
    num_prompt: dict[str, int]
    """call_id -> ids of its prompt."""
    splits: tuple[Split | None, ...]
    """For each branch, in their order; `None` where it shares no id with one before it."""
    trie: Trie
    ends: dict[ChoiceKey, Place]
    """Where the ids of each choice, prompt and sampled, end."""

    def ids(self, key: ChoiceKey, start: int, end: int) -> tuple[int, ...]:
        """A part of the prompt and sampled ids of a choice."""
        return self.trie.slice(self.ends[key], start, end)


class Trie:
    """Sequences of ids, each distinct prefix once; a node holds a run of ids."""

    def __init__(self) -> None:
        self._ids: list[tuple[int, ...]] = [()]
        self._start: list[int] = [0]
        self._parent: list[int] = [ROOT]
        self._children: list[dict[int, int]] = [{}]

    def extend(self, place: Place, ids: tuple[int, ...]) -> Place:
        """Where the sequence that ends at `place` ends with these ids after it.

        >>> trie = Trie()
        >>> one, other = trie.extend((ROOT, 0), (1, 2, 3)), trie.extend((ROOT, 0), (1, 2, 4))
        >>> trie.slice(one, 0, 3), trie.slice(other, 1, 3), trie.shared(one, other)
        ((1, 2, 3), (2, 4), 2)
        """
        node, depth = self.settled(place)
        at = 0
        while at < len(ids):
            inside = depth - self._start[node]
            if inside == len(self._ids[node]):
                child = self._children[node].get(ids[at])
                if child is None:
                    return self._add(node, depth, ids[at:]), depth + len(ids) - at
                node, inside = child, 0
            length = _common(self._ids[node], inside, ids, at)
            at, depth = at + length, depth + length
            if at < len(ids) and inside + length < len(self._ids[node]):
                node = self._split(node, depth)
        return node, depth

    def upto(self, place: Place, depth: int) -> Place:
        """Where the first `depth` ids of a sequence end. Raises `CorruptRecord` if it is not that long."""
        if depth > place[1]:
            raise CorruptRecord(NO_PLACE)
        return self.settled((place[0], depth))

    def slice(self, place: Place, start: int, end: int) -> tuple[int, ...]:
        """A part of the sequence that ends at a place."""
        node, depth = self.upto(place, min(end, place[1]))
        parts: list[tuple[int, ...]] = []
        while depth > start:
            first = self._start[node]
            parts.append(self._ids[node][max(0, start - first) : depth - first])
            node, depth = self._parent[node], first
        return tuple(token for part in reversed(parts) for token in part)

    def settled(self, place: Place) -> Place:
        """The same place in the node that holds its last id now."""
        node, depth = place
        while node != ROOT and depth <= self._start[node]:
            node = self._parent[node]
        return node, depth

    def path(self, place: Place) -> list[int]:
        """The nodes from the end of a sequence up, the root left out."""
        node, _ = self.settled(place)
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self._parent[node]
        return nodes

    def parent(self, node: int) -> int:
        return self._parent[node]

    def shared(self, one: Place, other: Place) -> int:
        """How many ids two sequences begin with in common."""
        nodes = set(self.path(one))
        common = next((node for node in self.path(other) if node in nodes), None)
        if common is None:
            return 0
        return min(one[1], other[1], self._start[common] + len(self._ids[common]))

    def _add(self, parent: int, start: int, ids: tuple[int, ...]) -> int:
        node = len(self._ids)
        self._ids.append(ids)
        self._start.append(start)
        self._parent.append(parent)
        self._children.append({})
        self._children[parent][ids[0]] = node
        return node

    def _split(self, node: int, depth: int) -> int:
        """Cut a node in two; the upper part is the new one, so that places below stay what they are."""
        ids, start, parent = self._ids[node], self._start[node], self._parent[node]
        cut = depth - start
        upper = self._add(parent, start, ids[:cut])
        self._children[upper][ids[cut]] = node
        self._ids[node], self._start[node], self._parent[node] = ids[cut:], depth, upper
        return upper


def outline(sketches: Iterable[Sketch], run: RunSettings) -> Outline:
    """Fold an episode from its calls as they are told, in the order of their list."""
    trie, ends, prompts, calls = _planted(sketches)
    ordered = in_order(calls)
    reasons = exclusions(ordered, run)
    finder = _Prefixes(trie, ends, prompts)
    folded = grow(ordered, reasons, context_choices(ordered, run, reasons), finder.longest)
    num_prompt = {call_id: place[1] for call_id, place in prompts.items()}
    trees = tuple(
        Tree(
            policy=tree.policy,
            nodes=tuple(msgspec.structs.replace(node, num_prompt=num_prompt[node.call_id]) for node in tree.nodes),
        )
        for tree in folded.trees
    )
    timeline = msgspec.structs.replace(folded, trees=trees)
    return Outline(
        calls=tuple(ordered),
        timeline=timeline,
        num_prompt=num_prompt,
        splits=_splits(timeline.branches, trie, ends),
        trie=trie,
        ends=ends,
    )


def sketched(calls: Iterable[Call]) -> tuple[Sketch, ...]:
    """Calls whose prompts are spelled out, as `outline` takes them."""
    return tuple(Sketch(call=call, prompt=(call.prompt_ids,) if call.prompt_ids else ()) for call in calls)


def _planted(
    sketches: Iterable[Sketch],
) -> tuple[Trie, dict[ChoiceKey, Place], dict[str, Place], list[Call]]:
    """The trie of all sequences, where each ends, where each prompt ends, and the calls.

    A call keeps one id for its prompt, as exclusions ask only whether there are any.
    """
    trie = Trie()
    sequences: dict[tuple[int, int], Place] = {}
    ends: dict[ChoiceKey, Place] = {}
    prompts: dict[str, Place] = {}
    calls: list[Call] = []
    for position, sketch in enumerate(sketches):
        call = sketch.call
        try:
            prompt = _prompt(trie, sketch.prompt, sequences)
        except CorruptRecord as error:
            prompt = ROOT, 0
            call = _unproven(call, error.message)
        prompts[call.call_id] = prompt
        if not call.choices:
            sequences[position, 0] = prompt
        for place, choice in enumerate(call.choices):
            end = trie.extend(prompt, choice.sampled_ids)
            ends[call.call_id, choice.index] = sequences[position, place] = end
        calls.append(msgspec.structs.replace(call, prompt_ids=(0,) if prompt[1] else ()))
    return trie, ends, prompts, calls


def _prompt(trie: Trie, told: Sequence[Part], sequences: Mapping[tuple[int, int], Place]) -> Place:
    place: Place = (ROOT, 0)
    for part in told:
        if not isinstance(part, Copy):
            place = trie.extend(place, part)
            continue
        source = sequences.get((part.position, part.choice), (ROOT, 0))
        if part.start == 0 and place[1] == 0:
            place = trie.upto(source, part.length)
        else:
            copied = trie.slice(trie.upto(source, part.start + part.length), part.start, part.start + part.length)
            place = trie.extend(place, copied)
    return place


def _unproven(call: Call, detail: str) -> Call:
    """As `records.py` gives a call back whose prompt cannot be put together."""
    choices = tuple(
        msgspec.structs.replace(choice, reason=choice.reason or Reason.UNRECORDED) for choice in call.choices
    )
    return msgspec.structs.replace(call, reason=call.reason or Reason.UNRECORDED, choices=choices, detail=detail)


class _Prefixes:
    """Finds, for each prompt, the longest sequences that it begins with."""

    def __init__(self, trie: Trie, ends: Mapping[ChoiceKey, Place], prompts: Mapping[str, Place]) -> None:
        self._trie = trie
        self._ends = ends
        self._prompts = prompts

    def longest(self, ordered: Sequence[Call], excluded: dict[ChoiceKey, Reason]) -> dict[str, list[ChoiceKey]]:
        """call_id -> choices of these calls whose ids its prompt begins with, the longest (equal ones together, oldest
        first)."""
        here: dict[int, dict[int, list[ChoiceKey]]] = {}
        for call, choice in included(ordered, excluded):
            node, depth = self._trie.settled(self._ends[call.call_id, choice.index])
            here.setdefault(node, {}).setdefault(depth, []).append((call.call_id, choice.index))
        above: dict[int, list[ChoiceKey]] = {ROOT: []}
        return {call.call_id: self._deepest(self._prompts[call.call_id], here, above) for call in ordered}

    def _deepest(
        self, prompt: Place, here: Mapping[int, Mapping[int, list[ChoiceKey]]], above: dict[int, list[ChoiceKey]]
    ) -> list[ChoiceKey]:
        node, depth = self._trie.settled(prompt)
        within = [at for at in here.get(node, ()) if at <= depth]
        return here[node][max(within)] if within else self._above(node, here, above)

    def _above(
        self, node: int, here: Mapping[int, Mapping[int, list[ChoiceKey]]], above: dict[int, list[ChoiceKey]]
    ) -> list[ChoiceKey]:
        """The deepest that end above a node; remembered for every node on the way."""
        passed: list[int] = []
        while node not in above:
            passed.append(node)
            parent = self._trie.parent(node)
            if here.get(parent):
                above[node] = here[parent][max(here[parent])]
            else:
                node = parent
        for one in passed:
            above[one] = above[node]
        return above[node]


def _splits(
    branches: Sequence[Sequence[ChoiceKey]], trie: Trie, ends: Mapping[ChoiceKey, Place]
) -> tuple[Split | None, ...]:
    """Where each branch leaves those before it."""
    first_on: dict[int, int] = {}
    splits: list[Split | None] = []
    for number, branch in enumerate(branches):
        ours = ends[branch[-1]]
        path = trie.path(ours)
        other = next((first_on[node] for node in path if node in first_on), None)
        if other is None:
            splits.append(None)
        else:
            theirs = ends[branches[other][-1]]
            depth = trie.shared(ours, theirs)
            splits.append(
                Split(branch=other, depth=depth, theirs=_id_at(trie, theirs, depth), ours=_id_at(trie, ours, depth))
            )
        for node in path:
            first_on.setdefault(node, number)
    return tuple(splits)


def _id_at(trie: Trie, place: Place, offset: int) -> int | None:
    return next(iter(trie.slice(place, offset, offset + 1)), None)


def _common(left: tuple[int, ...], i: int, right: tuple[int, ...], k: int) -> int:
    """How many ids of `left` from `i` and `right` from `k` are the same."""
    low, high = 0, min(len(left) - i, len(right) - k)
    if left[i : i + high] == right[k : k + high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if left[i + low : i + middle] == right[k + low : k + middle]:
            low = middle
        else:
            high = middle - 1
    return low
