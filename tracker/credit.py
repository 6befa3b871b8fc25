"""Rewards and credit: from reward events to one frozen advantage a call. Pure; each rule has a closed form as its test.

Baselines run over the **episodes** of a group, before any call is left out: infrastructure failures, cancelled and
unscored episodes are no members, nor is one that the run drops for an answer that was cut by its limit.
Episode and call rewards give separate advantages, summed with the run's weights:
`A_k = episode · discount_k · A(R_e) + own · A(G_k)`. The first compares effective rewards and is discounted by the
calls still to come; the second compares returns with those of other episodes at the same depth of the policy's tree, or
with its calls in whole episodes where no other episode got that deep: what one policy is rewarded for says nothing of
another's calls. With `roles_as_policies` the unit is the invocation of a role.

Deviation (`batch`) spans the groups of one step, those of the same family where the run has families. Staleness is left
to others.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from tracker.baselines import TOLERANCE, Baseline, baseline, mean
from tracker.exclusion import is_dropped
from tracker.returns import CallReturn, Invocation, call_returns, invocations_of
from tracker.types import (
    Call,
    CallCredit,
    Credit,
    EpisodeState,
    EpisodeStatus,
    Member,
    Reason,
    Record,
    Reward,
    RunSettings,
    SkipReason,
)

MAX_REWARD: Final = 1e100
"""An effective reward beyond this counts as this, so that sums and squares of any finite rewards stay finite."""

Part = tuple[str, str]
"""(policy, role)."""
PlaceT = TypeVar("PlaceT", str, Part)
_NO_MEMBER: Final = (EpisodeStatus.INFRA_ERROR, EpisodeStatus.CANCELLED)


class EpisodeOutcome(Record, frozen=True):
    """An ended episode as credit sees it."""

    episode_id: str
    status: EpisodeStatus
    reward: float | None
    """Effective reward without call rewards."""
    calls: tuple[Call, ...] = ()
    call_rewards: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    """call_id -> effective reward, scored calls only."""


class GroupCredit(Record, frozen=True):
    """What a group is trained with."""

    members: tuple[Member, ...]
    """Every episode of the group, members or not."""
    calls: tuple[CallCredit, ...]
    """One for each trained call of a member; empty where the group is skipped."""
    skip: SkipReason | None = None


def effective_reward(events: Iterable[Reward], weights: Mapping[str, float]) -> float | None:
    """The last value of each name, by sequence, summed with the weights; `None` if none is scored.

    A name without a weight weighs 1; one that weighs 0 is beside the reward, and scores nothing. A last value of `None`
    takes its name's score back: it is not a 0.
    """
    last = {event.name: event.value for event in sorted(events, key=lambda event: event.seq)}
    weighed = [(value, weights.get(name, 1.0)) for name, value in last.items() if value is not None]
    scored = [value * weight for value, weight in weighed if weight]
    if not scored:
        return None
    total = math.fsum(max(-MAX_REWARD, min(MAX_REWARD, value)) for value in scored)
    return max(-MAX_REWARD, min(MAX_REWARD, total))


def episode_reward(rewards: Iterable[Reward], weights: Mapping[str, float]) -> float | None:
    """The effective reward of the episode itself; rewards of its calls do not count here."""
    return effective_reward((event for event in rewards if event.call_id is None), weights)


def call_rewards(rewards: Iterable[Reward], weights: Mapping[str, float]) -> dict[str, float]:
    """call_id -> effective reward, for every call that is scored."""
    events: defaultdict[str, list[Reward]] = defaultdict(list)
    for event in rewards:
        if event.call_id is not None:
            events[event.call_id].append(event)
    effective = {call_id: effective_reward(listed, weights) for call_id, listed in events.items()}
    return {call_id: value for call_id, value in effective.items() if value is not None}


def member_standing(members: Sequence[Member], credit: Credit) -> tuple[Member, ...]:
    """Fill `member`, `why` and `advantage` of each from its status and reward.

    Provisional for kind `batch`, whose deviation spans the step: the group stands for it here.
    """
    values = _member_values(members)
    return _standing(members, baseline(credit, values, tuple(values.values())))


def group_credit(outcomes: Sequence[EpisodeOutcome], run: RunSettings) -> GroupCredit:
    """The credit of a step of one group."""
    return batch_credit([outcomes], run)[0]


def batch_credit(
    groups: Sequence[Sequence[EpisodeOutcome]], run: RunSettings, families: Sequence[str] = ()
) -> tuple[GroupCredit, ...]:
    """The credit of all groups of one step, in their order; `families` is the family of each, where there are any."""
    scored = [_ScoredGroup.of(outcomes, run) for outcomes in groups]
    of_each = families or [""] * len(scored)
    spans: defaultdict[str, list[_ScoredGroup]] = defaultdict(list)
    for family, group in zip(of_each, scored, strict=True):
        spans[family].append(group)
    values = {family: _StepValues.of(listed, run.credit) for family, listed in spans.items()}
    return tuple(_credit(group, values[family], run) for family, group in zip(of_each, scored, strict=True))


class _StepValues(Record, frozen=True):
    """One value for each member of the step (or of its family there), for the deviation of kind `batch`."""

    rewards: tuple[float, ...]
    own: dict[str, tuple[float, ...]]
    """By policy."""
    roles: dict[Part, tuple[float, ...]]

    @classmethod
    def of(cls, groups: Sequence[_ScoredGroup], credit: Credit) -> _StepValues:
        return cls(
            rewards=tuple(value for group in groups for value in group.rewards.values()),
            own=_merged(group.own_by_policy() for group in groups),
            roles=_merged(group.by_role(credit) for group in groups),
        )


class _ScoredGroup(Record, frozen=True):
    """A group whose members' trees are worked out."""

    members: tuple[Member, ...]
    rewards: dict[str, float]
    """episode_id -> effective reward; members only here, and in what follows."""
    returns: dict[str, tuple[CallReturn, ...]]
    invocations: dict[str, tuple[Invocation, ...]]

    @classmethod
    def of(cls, outcomes: Sequence[EpisodeOutcome], run: RunSettings) -> _ScoredGroup:
        members = tuple(
            Member(
                episode_id=item.episode_id,
                status=item.status,
                state=EpisodeState.ARCHIVED,
                reward=item.reward,
                truncated=is_dropped(item.calls, run),
            )
            for item in outcomes
        )
        rewards = _member_values(members)
        counted = [item for item in outcomes if item.episode_id in rewards]
        returns = {
            item.episode_id: call_returns(item.calls, run, item.call_rewards, run.credit.gamma) for item in counted
        }
        invocations = {item.episode_id: invocations_of(returns[item.episode_id], item.call_rewards) for item in counted}
        return cls(members=members, rewards=rewards, returns=returns, invocations=invocations)

    def own_by_policy(self) -> dict[str, dict[str, float]]:
        """policy -> episode_id -> mean own return of its calls, for episodes that called the policy."""
        gathered: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for episode_id, items in self.returns.items():
            for item in items:
                gathered[item.policy][episode_id].append(item.own)
        return {policy: {key: mean(values) for key, values in at.items()} for policy, at in gathered.items()}

    def by_role(self, credit: Credit) -> dict[Part, dict[str, float]]:
        """(policy, role) -> episode_id -> mean return of its invocations, for episodes that have the role."""
        gathered: defaultdict[Part, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for episode_id, items in self.invocations.items():
            for item in items:
                value = _invocation_return(item, self.rewards[episode_id], credit)
                gathered[item.part][episode_id].append(value)
        return {part: {key: mean(values) for key, values in at.items()} for part, at in gathered.items()}


def _why_no_member(member: Member) -> str:
    """Empty where the episode counts."""
    if member.status is not None and member.status in _NO_MEMBER:
        return EpisodeStatus(member.status).value
    if member.truncated:
        return Reason.TRUNCATED.value
    return "unscored" if member.reward is None else ""


def _member_values(members: Iterable[Member]) -> dict[str, float]:
    return {
        member.episode_id: member.reward
        for member in members
        if member.reward is not None and not _why_no_member(member)
    }


def _standing(members: Iterable[Member], compared: Baseline) -> tuple[Member, ...]:
    standing: list[Member] = []
    for member in members:
        why = _why_no_member(member)
        advantage = None
        if not why and member.reward is not None:
            advantage = compared.advantage(member.episode_id, member.reward)
        standing.append(msgspec.structs.replace(member, member=not why, why=why, advantage=advantage))
    return tuple(standing)


def _credit(group: _ScoredGroup, step: _StepValues, run: RunSettings) -> GroupCredit:
    compared = baseline(run.credit, group.rewards, step.rewards)
    if run.roles_as_policies:
        calls = _role_advantages(group, step, run.credit)
    else:
        calls = _tree_advantages(group, step, compared, run.credit)
    skip = _skip_reason(group, calls, run.credit)
    members = _standing(group.members, compared)
    return GroupCredit(members=members, calls=() if skip else tuple(calls), skip=skip)


def _skip_reason(group: _ScoredGroup, calls: Sequence[CallCredit], credit: Credit) -> SkipReason | None:
    if not group.rewards:
        return SkipReason.TOO_FEW_SCORED
    if len(group.rewards) == 1 and credit.kind != "none":
        return SkipReason.ONE_MEMBER
    if not calls:
        return SkipReason.NO_IDS
    return None if any(abs(item.advantage) > TOLERANCE for item in calls) else SkipReason.NO_VARIANCE


def _tree_advantages(group: _ScoredGroup, step: _StepValues, compared: Baseline, credit: Credit) -> list[CallCredit]:
    """A call's share of its episode's advantage, and its own against the same depth of the other episodes."""
    whole = {policy: baseline(credit, values, step.own[policy]) for policy, values in group.own_by_policy().items()}
    by_depth = {
        (policy, depth): baseline(credit, values, step.own[policy])
        for (policy, depth), values in _own_by_depth(group.returns).items()
        if len(values) > 1
    }
    calls: list[CallCredit] = []
    for episode_id, items in group.returns.items():
        episode_advantage = compared.advantage(episode_id, group.rewards[episode_id])
        for item in items:
            if not item.trained:
                continue
            own = by_depth.get((item.policy, item.depth), whole[item.policy]).advantage(episode_id, item.own)
            advantage = credit.episode * item.discount * episode_advantage + credit.own * own
            calls.append(CallCredit(episode_id=episode_id, call_id=item.call_id, advantage=advantage))
    return calls


def _own_by_depth(returns: Mapping[str, Sequence[CallReturn]]) -> dict[tuple[str, int], dict[str, float]]:
    """(policy, depth) -> episode_id -> mean own return of the episode's calls of that policy at that depth."""
    gathered: defaultdict[tuple[str, int], defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for episode_id, items in returns.items():
        for item in items:
            gathered[item.policy, item.depth][episode_id].append(item.own)
    return {place: {key: mean(values) for key, values in at.items()} for place, at in gathered.items()}


def _role_advantages(group: _ScoredGroup, step: _StepValues, credit: Credit) -> list[CallCredit]:
    """`R_u = own Σ r + episode R_e` of each invocation against the role's mean over episodes, times 1 / n(e, role)."""
    compared = {part: baseline(credit, values, step.roles[part]) for part, values in group.by_role(credit).items()}
    calls: list[CallCredit] = []
    for episode_id, items in group.invocations.items():
        for item in items:
            value = _invocation_return(item, group.rewards[episode_id], credit)
            advantage = item.weight * compared[item.part].advantage(episode_id, value)
            calls += [CallCredit(episode_id=episode_id, call_id=key, advantage=advantage) for key in item.call_ids]
    return calls


def _invocation_return(invocation: Invocation, reward: float, credit: Credit) -> float:
    return credit.own * invocation.own + credit.episode * reward


def _merged(groups: Iterable[Mapping[PlaceT, Mapping[str, float]]]) -> dict[PlaceT, tuple[float, ...]]:
    """place -> the values of every episode that has one there, over all groups."""
    merged: defaultdict[PlaceT, list[float]] = defaultdict(list)
    for group in groups:
        for place, values in group.items():
            merged[place].extend(values.values())
    return {place: tuple(values) for place, values in merged.items()}
