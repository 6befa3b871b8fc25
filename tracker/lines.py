"""What a version carries: the steps of its line, and what became of an episode in them.

A version carries what its own step was trained on and what the steps before it on its line were: those of its epoch,
and, back over each rollback, those up to the version that was gone back to. Pure; what SQL holds of it is read by
`lineage.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tracker.types import Record

TRAINED: Final = "trained"

Line = Mapping[int, int]
"""epoch -> the last of its steps that a version carries."""


class StepTaken(Record, frozen=True):
    """A trained step of a policy, by the place it has in it."""

    epoch: int
    step: int
    version: int | None = None
    """The version it was published as."""


class TrainedIn(Record, frozen=True):
    """One batch that an episode is part of."""

    batch_id: str
    policy: str
    epoch: int
    step: int
    state: str
    """`taken`: not trained yet; `trained`."""
    num_tokens: int | None
    """Trained tokens of the episode; null where there is no manifest yet."""
    version: int | None
    """The version that this step published."""
    carried_by: tuple[int, ...]
    """Every published version that carries it, that one included."""
    created_ms: int


class EpisodeLineage(Record, frozen=True):
    """What became of an episode in training."""

    episode_id: str
    is_deleted: bool
    group_id: str | None
    group_state: str | None
    reason: str | None
    """Why its group was skipped."""
    batches: tuple[TrainedIn, ...]
    versions: dict[str, tuple[int, ...]]
    """policy -> every version that carries it."""


class TrainedEpisode(Record, frozen=True):
    """An episode that a batch was trained on."""

    episode_id: str
    num_tokens: int
    is_deleted: bool
    group_id: str | None
    run: str
    task: str


class CarriedBatch(Record, frozen=True):
    """A batch that a version carries."""

    batch_id: str
    epoch: int
    step: int
    version: int | None
    is_own: bool
    """Whether the version is what this step published; the others came to it through earlier versions."""
    created_ms: int
    num_foreign: int
    """Episodes of other tenants, which are not told."""
    episodes: tuple[TrainedEpisode, ...]


def line_of(version: int, steps: Iterable[StepTaken], epochs: Mapping[int, int], roots: Mapping[int, int]) -> Line:
    """What a version carries; `epochs` are those of versions, `roots` the versions that epochs began from.

    >>> steps = [StepTaken(epoch=0, step=1, version=1), StepTaken(epoch=0, step=2, version=2)]
    >>> line_of(3, [*steps, StepTaken(epoch=1, step=3, version=3)], {1: 0, 2: 0, 3: 1}, {1: 1})
    {1: 3, 0: 1}
    """
    known = list(steps)
    line: dict[int, int] = {}
    while version in epochs and epochs[version] not in line:
        epoch = epochs[version]
        line[epoch] = _last_step(version, epoch, known)
        version = roots.get(epoch, epoch and max((one for one in epochs if epochs[one] < epoch), default=0))
    return line


def carries(line: Line, epoch: int, step: int) -> bool:
    """Whether a step is one of a version's line."""
    return step <= line.get(epoch, -1)


def _last_step(version: int, epoch: int, steps: Sequence[StepTaken]) -> int:
    """The step that published a version; for one that was published by hand the last that an earlier one did."""
    before = (one.step for one in steps if one.epoch == epoch and one.version is not None and one.version <= version)
    return max(before, default=-1)


def lineage_line(lineage: EpisodeLineage) -> str:
    """One line for people."""
    carried = ", ".join(f"{policy} {_ranges(versions)}" for policy, versions in lineage.versions.items() if versions)
    waiting = sum(batch.state != TRAINED for batch in lineage.batches)
    trained = sum(batch.state == TRAINED for batch in lineage.batches)
    told = f"trained on in {trained} batches, carried by no version" if trained else "no version was trained on it"
    told = f"carried by {carried}" if carried else told
    return f"{lineage.episode_id}: {told}" + (f"; {waiting} batches are taken and not trained yet" if waiting else "")


def _ranges(versions: Sequence[int]) -> str:
    """Numbers in order, those that follow each other as one range.

    >>> _ranges((1, 2, 3, 7))
    '1-3, 7'
    """
    parts: list[list[int]] = []
    for version in versions:
        if parts and parts[-1][-1] + 1 == version:
            parts[-1][1:] = [version]
        else:
            parts.append([version])
    return ", ".join("-".join(map(str, part)) for part in parts)
