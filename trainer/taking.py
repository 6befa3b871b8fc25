"""From ready groups to a batch with frozen credit, and from a batch back to its rows. Pure.

The rule: what is trained is decided once, when the batch is taken. Its credit names every call that is trained; a call
that is missing there (excluded, stale, of no member) is never trained, also not when the batch is trained again after a
crash. Reading SQL and writing down what was decided is left to `feed.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from tracker.baselines import TOLERANCE, mean
from tracker.credit import EpisodeOutcome, batch_credit
from tracker.errors import CorruptRecord
from tracker.families import family_of
from tracker.samples import Row, rows_of
from tracker.types import SERVED_STATES, Call, CallCredit, Group, RunSettings, SkipReason, Version, VersionState
from trainer.steps import FamilyShare

AHEAD = (VersionState.ACTIVE, VersionState.LOADING)
"""States of versions newer than the active one that count as published: on trial, and waiting for theirs."""


@dataclass(frozen=True, slots=True)
class LoadedGroup:
    """A group with everything its members did."""

    group: Group
    outcomes: tuple[EpisodeOutcome, ...]
    num_rewards: int
    """Reward events that were read: if there are more when the batch is taken, the credit is computed again."""
    fault: str = ""
    """What of it is not what was sealed; then there are no outcomes."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a group: the calls it is trained with, or why it is not."""

    group: Group
    credit: tuple[CallCredit, ...]
    skip: SkipReason | None = None


@dataclass(frozen=True, slots=True)
class Course:
    """The versions a policy went through, to tell how old a call is."""

    active: int
    """The newest: the one that agents get, or one that was published since and is on trial, or waits to be."""
    served: tuple[int, ...]
    """Versions that were active at some time, or may be yet; a number that never was is no age."""
    withdrawn: frozenset[int] = frozenset()
    """Versions that were rolled back: nothing that they played is trained."""

    @classmethod
    def of(cls, active: int, versions: Sequence[Version]) -> Course:
        ahead = [version.version for version in versions if version.version > active and version.state in AHEAD]
        served = [version.version for version in versions if version.state in SERVED_STATES]
        return cls(
            active=max([active, *ahead]),
            served=tuple(sorted({*served, *ahead})),
            withdrawn=frozenset(one.version for one in versions if one.state is VersionState.WITHDRAWN),
        )

    def lag(self, version: int) -> int:
        """How many versions were published after `version`, up to the active one.

        >>> Course(active=5, served=(1, 2, 5)).lag(1)
        2
        """
        return sum(version < other <= self.active for other in self.served)


def verdicts(groups: Sequence[LoadedGroup], run: RunSettings, policy: str, course: Course) -> tuple[Verdict, ...]:
    """Credit for the groups of one step; with kind `batch` the deviation spans exactly these, by family."""
    families = [family_of(loaded.group.task, run.families) or "" for loaded in groups]
    credits = batch_credit([loaded.outcomes for loaded in groups], run, families)
    return tuple(
        Verdict(loaded.group, (), credit.skip) if credit.skip else _trained(loaded, credit.calls, run, policy, course)
        for loaded, credit in zip(groups, credits, strict=True)
    )


def _trained(
    loaded: LoadedGroup, credit: Sequence[CallCredit], run: RunSettings, policy: str, course: Course
) -> Verdict:
    """Keep the credit of calls that have a row and are not too old.

    An episode that was moved to another version loses the calls it had with the one before; one whose calls are all too
    old, or of a version that was rolled back, takes the group with it, since a baseline over the others would be
    another one.
    """
    rows = [row for outcome in loaded.outcomes for row in rows_of(outcome.calls, run, policy)]
    credited = {(item.episode_id, item.call_id) for item in credit}
    rows = [row for row in rows if (row.episode_id, row.call_id) in credited]
    if not rows:
        return Verdict(loaded.group, (), SkipReason.NO_IDS)
    kept = [row for row in rows if row.version not in course.withdrawn]
    if {row.episode_id for row in kept} != {row.episode_id for row in rows}:
        return Verdict(loaded.group, (), SkipReason.WITHDRAWN)
    if run.on_stale != "train":
        rows = kept
        kept = [row for row in rows if course.lag(row.version) <= run.staleness]
        if {row.episode_id for row in kept} != {row.episode_id for row in rows}:
            return Verdict(loaded.group, (), SkipReason.EXPIRED)
    names = {(row.episode_id, row.call_id) for row in kept}
    trained = tuple(item for item in credit if (item.episode_id, item.call_id) in names)
    if all(abs(item.advantage) <= TOLERANCE for item in trained):
        # The group may teach another policy something; this one it teaches nothing.
        return Verdict(loaded.group, (), SkipReason.NO_VARIANCE)
    return Verdict(loaded.group, trained)


def facts_of(groups: Sequence[LoadedGroup], run: RunSettings, policy: str) -> dict[str, object]:
    """What is told of a step from the moment it is taken, as JSON values."""
    return {
        "tenant": groups[0].group.tenant,
        "run": run.run,
        "reward_mean": reward_mean(groups),
        "call_reward_mean": call_reward_mean(groups, policy),
        "families": {family: asdict(share) for family, share in family_shares(groups, run).items()},
    }


def reward_mean(groups: Sequence[LoadedGroup]) -> float | None:
    """Over the episodes that are scored."""
    rewards = [item.reward for loaded in groups for item in loaded.outcomes if item.reward is not None]
    return mean(rewards) if rewards else None


def call_reward_mean(groups: Sequence[LoadedGroup], policy: str) -> float | None:
    """Over the calls of a policy that are scored."""
    rewards = [
        outcome.call_rewards[call.call_id]
        for loaded in groups
        for outcome in loaded.outcomes
        for call in outcome.calls
        if call.policy == policy and call.call_id in outcome.call_rewards
    ]
    return mean(rewards) if rewards else None


def family_shares(groups: Sequence[LoadedGroup], run: RunSettings) -> dict[str, FamilyShare]:
    """family -> what it has in the step; empty where the run has no families."""
    by_family: dict[str, list[LoadedGroup]] = {family: [] for family in run.families}
    for loaded in groups:
        family = family_of(loaded.group.task, run.families)
        if family is not None:
            by_family[family].append(loaded)
    return {family: FamilyShare(len(listed), reward_mean(listed)) for family, listed in by_family.items()}


def credited_rows(
    calls_by_episode: Mapping[str, Sequence[Call]], run: RunSettings, policy: str, credit: Sequence[CallCredit]
) -> tuple[tuple[Row, ...], tuple[float, ...]]:
    """The rows of a batch and the advantage of each, in the order of the frozen credit's episodes."""
    advantages = {(item.episode_id, item.call_id): item.advantage for item in credit}
    rows = [
        row
        for episode_id in dict.fromkeys(item.episode_id for item in credit)
        for row in rows_of(calls_by_episode[episode_id], run, policy)
        if (row.episode_id, row.call_id) in advantages and row.sampled_ids
    ]
    missing = advantages.keys() - {(row.episode_id, row.call_id) for row in rows}
    if missing:
        episode_id, call_id = sorted(missing)[0]
        others = f", like {len(missing) - 1} others" if len(missing) > 1 else ""
        raise CorruptRecord(f"episode {episode_id}, call {call_id}: it has credit and no row any more{others}")
    return tuple(rows), tuple(advantages[row.episode_id, row.call_id] for row in rows)
