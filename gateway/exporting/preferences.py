"""Preferences: which two answers of a group are a pair, and what its row says. Pure."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gateway.exporting.forms import Opened, Row, Wanted, said_rows
from tracker.types import Record

ALONE: Final = "no_pair"


class _Side(Record, frozen=True):
    """One answer that may be in a pair."""

    row: Row
    reward: float


def pairs(episodes: Iterable[Opened], wanted: Wanted, left_out: Counter[str]) -> Iterator[Row]:
    """The preferences of one group.

    Answers are compared that were given to the very same prompt and tools, under one policy and role, by different
    members of the group. They are put in order of their episode's reward; the best is paired with the worst, the
    second best with the second worst, and so on while the rewards differ by more than the margin: each answer stands in
    at most one pair. With a threshold, the better one of a pair must reach it and the other must not. Equal answers are
    no preference.
    """
    sides: defaultdict[bytes, list[_Side]] = defaultdict(list)
    for episode in episodes:
        left_out.update(reason.value for reason in episode.timeline.excluded.values())
        for row in said_rows(episode, wanted, left_out, is_paired=True):
            if row["reward"] is not None:
                sides[_prompt_key(row)].append(_Side(row=row, reward=row["reward"]))
    for same in sides.values():
        num_paired = 0
        for better, worse in _matched(sorted(same, key=lambda side: -side.reward), wanted):
            num_paired += 2
            yield _pair(better.row, worse.row)
        if num_paired < len(same):
            left_out[ALONE] += len(same) - num_paired


def _matched(ordered: Sequence[_Side], wanted: Wanted) -> Iterator[tuple[_Side, _Side]]:
    for better, worse in zip(ordered[: len(ordered) // 2], reversed(ordered), strict=False):
        if better.reward - worse.reward <= wanted.margin:
            return
        is_apart = wanted.threshold is None or worse.reward < wanted.threshold <= better.reward
        is_other = better.row["episode_id"] != worse.row["episode_id"]
        if is_apart and is_other and better.row["completion"] != worse.row["completion"]:
            yield better, worse


def _pair(better: Row, worse: Row) -> Row:
    shared = {name: better[name] for name in ("run", "task", "group_id", "role", "policy")}
    tools = {"tools": better["tools"]} if "tools" in better else {}
    told = {
        f"{side}_{name}": row[name]
        for side, row in (("chosen", better), ("rejected", worse))
        for name in ("reward", "episode_id", "call_id", "choice", "parent_call_id", "version", "correct")
    }
    said = {"prompt": better["prompt"], "chosen": better["completion"], "rejected": worse["completion"]}
    return {**said, **tools, **shared, **told}


def _prompt_key(row: Row) -> bytes:
    named = (row["prompt"], row.get("tools"), row["policy"], row["role"])
    return json.dumps(named, sort_keys=True).encode()
