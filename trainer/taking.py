"""From ready groups to a batch with frozen credit, and from a batch back to its rows. Pure.

The rule: what is trained is decided once, when the batch is taken. Its credit names every call that is trained; a call
that is missing there (excluded, stale, of no member) is never trained, also not when the batch is trained again after a
crash. Reading SQL and writing down what was decided is left to `feed.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from tracker.baselines import TOLERANCE, mean
from tracker.credit import EpisodeOutcome, batch_credit
from tracker.errors import CorruptRecord
from tracker.families import family_of
from tracker.receipts import call_digest
from tracker.samples import Row, rows_of
from tracker.types import Call, CallCredit, Choice, Group, RunSettings, SkipReason, Version, VersionState
from trainer.steps import FamilyShare

SERVED: tuple[VersionState, ...] = (VersionState.ACTIVE, VersionState.RETIRED)


@dataclass(frozen=True, slots=True)
class LoadedGroup:
    """A group with everything its members did."""

    group: Group
    outcomes: tuple[EpisodeOutcome, ...]
    num_rewards: int
    """Reward events that were read: if there are more when the batch is taken, the credit is computed again."""


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
    served: tuple[int, ...]
    """Versions that were active at some time; a number that never was is no age."""

    @classmethod
    def of(cls, active: int, versions: Sequence[Version]) -> Course:
        return cls(active, tuple(version.version for version in versions if version.state in SERVED))

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

    An episode that was moved to a newer version loses its old calls; one whose calls are all old takes the group with
    it, since a baseline over the others would be another one.
    """
    rows = [row for outcome in loaded.outcomes for row in rows_of(outcome.calls, run, policy)]
    credited = {(item.episode_id, item.call_id) for item in credit}
    rows = [row for row in rows if (row.episode_id, row.call_id) in credited]
    if not rows:
        return Verdict(loaded.group, (), SkipReason.NO_IDS)
    kept = rows
    if run.on_stale != "train":
        kept = [row for row in rows if course.lag(row.version) <= run.staleness]
        if {row.episode_id for row in kept} != {row.episode_id for row in rows}:
            return Verdict(loaded.group, (), SkipReason.EXPIRED)
    names = {(row.episode_id, row.call_id) for row in kept}
    trained = tuple(item for item in credit if (item.episode_id, item.call_id) in names)
    if all(abs(item.advantage) <= TOLERANCE for item in trained):
        # The group may teach another policy something; this one it teaches nothing.
        return Verdict(loaded.group, (), SkipReason.NO_VARIANCE)
    return Verdict(loaded.group, trained)


def reward_mean(groups: Sequence[LoadedGroup]) -> float | None:
    """Over the episodes that are scored."""
    rewards = [item.reward for loaded in groups for item in loaded.outcomes if item.reward is not None]
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
        raise CorruptRecord(f"{len(missing)} calls of the batch have no row any more, such as {sorted(missing)[0][1]}.")
    return tuple(rows), tuple(advantages[row.episode_id, row.call_id] for row in rows)


def manifest_of(rows: Sequence[Row], calls: Mapping[str, Call]) -> bytes:
    """What was trained: for every span the receipt of its call and where in the call it stands.

    Each row is put back into its call and the receipt computed anew: raises `CorruptRecord` where it is not the one the
    row carries, so no token is trained that the engine did not sample in exactly this context.
    """
    spans: list[dict[str, object]] = []
    for row in rows:
        if call_digest(_restored(row, calls[row.call_id])) != row.receipt:
            raise CorruptRecord(f"Call {row.call_id} does not have the tokens of its receipt; the batch is refused.")
        spans.append(
            {
                "episode_id": row.episode_id,
                "call_id": row.call_id,
                "choice": row.choice,
                "version": row.version,
                "receipt": row.receipt.hex(),
                "start": len(row.prompt_ids),
                "end": len(row.prompt_ids) + len(row.sampled_ids),
            }
        )
    return json.dumps({"spans": spans}, separators=(",", ":")).encode()


def _restored(row: Row, call: Call) -> Call:
    """The call with what the row says of it in place of what it says itself."""

    def told(choice: Choice) -> Choice:
        if choice.index != row.choice:
            return choice
        return msgspec.structs.replace(choice, sampled_ids=row.sampled_ids, logprobs=row.logprobs)

    return msgspec.structs.replace(
        call,
        policy=row.policy,
        version=row.version,
        adapter_digest=row.adapter_digest,
        prompt_ids=row.prompt_ids,
        sampling=msgspec.structs.replace(call.sampling, temperature=row.temperature),
        choices=tuple(told(choice) for choice in call.choices),
    )
