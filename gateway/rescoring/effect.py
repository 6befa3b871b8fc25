"""What another reward would change: advantages that change their sign, and how the two rank the same episodes. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

from msgspec.structs import replace

from tracker.credit import episode_reward, member_standing
from tracker.types import Group, GroupState, Member, Record, Reward, RunSettings

AT_LAST: Final = 2**62
"""Comes after every reward that is stored."""
STILL_OPEN: Final = (GroupState.OPEN, GroupState.READY)


class Effect(Record, frozen=True):
    """What the new scores would do to the advantages of a run."""

    num_groups: int = 0
    num_advantages: int = 0
    """Of members that have one before and after."""
    num_changed: int = 0
    """That change their sign; from and to 0 too."""
    num_still_open: int = 0
    """Of the groups, those that can still be trained with the new scores; in others they come too late."""
    rank_correlation: float | None = None
    """Spearman's, of the rewards so far and the new scores; `None` where either is always the same."""

    def plus(self, other: Effect) -> Effect:
        """Of both together; the correlation is of all episodes and stays."""
        names = ("num_groups", "num_advantages", "num_changed", "num_still_open")
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in names})


class Change(Record, frozen=True):
    """Another reward of a run."""

    run: RunSettings
    name: str
    weight: float


def effect_on(
    group: Group, rewards: Mapping[str, Sequence[Reward]], scores: Mapping[str, float | None], change: Change
) -> Effect:
    """Compare a group as it stands with what it would be; `rewards` are the reward events of its members."""
    run, name = change.run, change.name
    weights = {**run.reward_weights, name: change.weight}
    seated = [member for member in group.members if member.member]
    before = _advantages([_with(member, rewards, {}, run.reward_weights, name) for member in seated], run)
    after = _advantages([_with(member, rewards, scores, weights, name) for member in seated], run)
    both = before.keys() & after.keys()
    return Effect(
        num_groups=1,
        num_advantages=len(both),
        num_changed=sum(_sign(before[one]) != _sign(after[one]) for one in both),
        num_still_open=int(group.state in STILL_OPEN),
    )


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's rank correlation: Pearson's of the ranks, equal values sharing their mean rank.

    >>> rank_correlation([(1, 10), (2, 20), (3, 40)]), rank_correlation([(1, 3), (2, 2), (3, 1)])
    (1.0, -1.0)
    """
    if len(pairs) < 2:
        return None
    xs, ys = _ranks([x for x, _ in pairs]), _ranks([y for _, y in pairs])
    middle = (len(pairs) + 1) / 2
    together = math.fsum((x - middle) * (y - middle) for x, y in zip(xs, ys, strict=True))
    spread = math.fsum((x - middle) ** 2 for x in xs) * math.fsum((y - middle) ** 2 for y in ys)
    return together / math.sqrt(spread) if spread else None


def _with(
    member: Member,
    rewards: Mapping[str, Sequence[Reward]],
    scores: Mapping[str, float | None],
    weights: Mapping[str, float],
    name: str,
) -> Member:
    """The member with its reward by these weights, the new score among them where there is one."""
    events = list(rewards.get(member.episode_id, ()))
    if member.episode_id in scores:
        score = scores[member.episode_id]
        events.append(Reward(reward_id="", seq=AT_LAST, episode_id=member.episode_id, name=name, value=score))
    return replace(member, reward=episode_reward(events, weights), advantage=None, why="")


def _advantages(members: Sequence[Member], run: RunSettings) -> dict[str, float]:
    return {
        member.episode_id: member.advantage
        for member in member_standing(members, run.credit)
        if member.advantage is not None
    }


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(range(len(values)), key=lambda place: values[place])
    ranks = [0.0] * len(values)
    first = 1
    for _, same in groupby(ordered, key=lambda place: values[place]):
        places = list(same)
        for place in places:
            ranks[place] = first + (len(places) - 1) / 2
        first += len(places)
    return ranks
