"""The token trie of a step: every distinct prefix of its calls stands once, packed depth first. Pure.

A row is run as its input ids, all of prompt and sampled ids but the last, from which nothing is predicted. Rows are
sorted, so each one shares with those before it exactly what it shares with its neighbour, and what is new of it is
appended. In this order the descendants of a token follow it without a gap. So a token may see those before it whose
subtree has not ended, and attention needs no more than segments: stretches of tokens without a fork.

The rule: along the path of a row stand exactly its ids at exactly their depths (`check_paths`), whatever is shared and
wherever a step is cut into micro-batches. A call is never cut. What ancestors two micro-batches share is run in both.

>>> pack([[5, 6, 7], [5, 6, 8, 9]], [0, 1], shared_prefixes([[5, 6, 7], [5, 6, 8, 9]], "trie")).ids
(5, 6, 7, 8, 9)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, Literal

from tracker.errors import CorruptRecord
from tracker.evidence import check_context
from tracker.samples import Row

Sharing = Literal["calls", "merged", "trie"]
"""What is run once: nothing (one row a call), rows that are whole prefixes of another, or every common prefix."""
SHARINGS: Final[tuple[Sharing, ...]] = ("calls", "merged", "trie")
Ids = Sequence[int]


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of packed tokens, `start` to `end`, without a fork: each follows the one before it."""

    start: int
    end: int
    """Exclusive."""
    stop: int
    """Where its subtree ends: the tokens from `end` to `stop` are its descendants, and see all of it."""
    depth: int
    """Tokens above its first one."""


@dataclass(frozen=True, slots=True)
class Pack:
    """Some rows of a step as one trie (or several side by side)."""

    ids: tuple[int, ...]
    depths: tuple[int, ...]
    segments: tuple[Segment, ...]
    rows: tuple[int, ...]
    """Numbers of the rows, in the order of the packing."""
    paths: tuple[tuple[range, ...], ...]
    """For each of `rows`: where its input ids stand, from the root down, in stretches."""

    @property
    def num_tokens(self) -> int:
        return len(self.ids)


def input_ids(row: Row) -> tuple[int, ...]:
    """What is run of a row."""
    return (row.prompt_ids + row.sampled_ids)[:-1]


def sorted_numbers(sequences: Sequence[tuple[int, ...]]) -> list[int]:
    """Numbers of the sequences in the order in which they are packed: a prefix before what goes on from it."""
    return sorted(range(len(sequences)), key=sequences.__getitem__)


def shared_prefixes(ordered: Sequence[Ids], sharing: Sharing) -> list[int]:
    """How many leading ids each sequence takes from its predecessor; 0 for the first."""
    if sharing == "calls":
        return [0] * len(ordered)
    lengths = [0, *(_common(one, other) for one, other in pairwise(ordered))]
    if sharing == "merged":
        return [length if length and length == len(ordered[place - 1]) else 0 for place, length in enumerate(lengths)]
    return lengths[: len(ordered)]


def cut(ordered: Sequence[Ids], shared: Sequence[int], budget: int) -> list[range]:
    """Cut sorted sequences into micro-batches of at most `budget` packed tokens, so that in all the fewest are run.

    A sequence over the budget stands alone. Dynamic programming over the places to cut: what a cut costs is the shared
    prefix that is run again behind it.

    >>> cut([[1, 2, 3], [1, 2, 4], [9, 9, 9]], [0, 2, 0], 6)
    [range(0, 2), range(2, 3)]
    """
    new = [len(ids) - kept for ids, kept in zip(ordered, shared, strict=True)]
    before = [0, *accumulate(new)]
    least: list[int] = [0]
    starts: list[int] = []
    for end in range(1, len(ordered) + 1):
        best, chosen = least[end - 1] + len(ordered[end - 1]), end - 1
        for start in range(end - 2, -1, -1):
            inside = before[end] - before[start + 1]
            if inside > budget:
                break
            tokens = len(ordered[start]) + inside
            if tokens <= budget and least[start] + tokens <= best:
                best, chosen = least[start] + tokens, start
        least.append(best)
        starts.append(chosen)
    pieces: list[range] = []
    end = len(ordered)
    while end:
        pieces.append(range(starts[end - 1], end))
        end = starts[end - 1]
    return pieces[::-1]


def pack(ordered: Sequence[Ids], numbers: Sequence[int], shared: Sequence[int]) -> Pack:
    """Pack sorted sequences; the first one shares nothing, whatever `shared` says of it."""
    ids: list[int] = []
    depths: list[int] = []
    breaks: set[int] = set()
    paths: list[tuple[range, ...]] = []
    path: tuple[range, ...] = ()
    for place, sequence in enumerate(ordered):
        kept = shared[place] if place else 0
        path = _first(path, kept)
        if kept < len(sequence):
            # A token that is followed by another than its neighbour begins a segment, and so does that neighbour.
            fork = path[-1].stop if path else len(ids)
            if fork != len(ids) or not kept:
                breaks |= {fork, len(ids)}
            path = _joined(path, range(len(ids), len(ids) + len(sequence) - kept))
            ids += sequence[kept:]
            depths += range(kept, len(sequence))
        paths.append(path)
    segments = _segments(sorted(breaks), depths)
    return Pack(tuple(ids), tuple(depths), segments, tuple(numbers), tuple(paths))


def plan_packs(rows: Sequence[Row], budget: int, sharing: Sharing) -> tuple[Pack, ...]:
    """The micro-batches of a step, having checked that each row keeps its context."""
    sequences = [input_ids(row) for row in rows]
    numbers = sorted_numbers(sequences)
    ordered = [sequences[number] for number in numbers]
    shared = shared_prefixes(ordered, sharing)
    packs = tuple(
        pack(ordered[piece.start : piece.stop], numbers[piece.start : piece.stop], shared[piece.start : piece.stop])
        for piece in cut(ordered, shared, budget)
    )
    check_paths(rows, packs)
    return packs


def check_paths(rows: Sequence[Row], packs: Sequence[Pack]) -> None:
    """Refuse unless every row stands in exactly one pack, its ids along its path, each at its own depth."""
    if sorted(number for one in packs for number in one.rows) != list(range(len(rows))):
        raise CorruptRecord("A row was lost or doubled when rows were packed; nothing is trained.")
    for one in packs:
        for number, path in zip(one.rows, one.paths, strict=True):
            along = tuple(token for stretch in path for token in one.ids[stretch.start : stretch.stop])
            depths = tuple(depth for stretch in path for depth in one.depths[stretch.start : stretch.stop])
            check_context(rows[number], along)
            if depths != tuple(range(len(along))):
                raise CorruptRecord(f"Call {rows[number].call_id} would be trained at other positions than it had.")


def trained_places(path: Sequence[range], row: Row) -> list[int]:
    """Where the hidden states stand from which the row's sampled ids are predicted, one after another."""
    first = len(row.prompt_ids) - 1
    places: list[int] = []
    for stretch in path:
        places += stretch[max(0, first) :]
        first -= len(stretch)
    return places


def _common(one: Ids, other: Ids) -> int:
    """The length of the longest common prefix."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    return next(place for place in range(length) if one[place] != other[place])


def _first(path: Sequence[range], length: int) -> tuple[range, ...]:
    """The stretches that hold the first `length` tokens of a path."""
    kept: list[range] = []
    for stretch in path:
        if not length:
            break
        kept.append(stretch[:length])
        length -= len(kept[-1])
    return tuple(kept)


def _joined(path: tuple[range, ...], stretch: range) -> tuple[range, ...]:
    """A path and what follows it, as one stretch where it lies right behind."""
    if path and path[-1].stop == stretch.start:
        return (*path[:-1], range(path[-1].start, stretch.stop))
    return (*path, stretch)


def _segments(starts: Sequence[int], depths: Sequence[int]) -> tuple[Segment, ...]:
    """Segments between the places where one begins; a segment's subtree ends with the next one that is no deeper."""
    ends = [*starts[1:], len(depths)]
    stops: list[int] = [0] * len(starts)
    unfinished: list[int] = []
    for number, start in enumerate(starts):
        while unfinished and depths[starts[unfinished[-1]]] >= depths[start]:
            stops[unfinished.pop()] = start
        unfinished.append(number)
    for number in unfinished:
        stops[number] = len(depths)
    return tuple(Segment(start, end, stop, depths[start]) for start, end, stop in zip(starts, ends, stops, strict=True))
