"""What was known before a trial of the tasks that are played in it, as SQL holds it.

The rule: only what was archived before the trial began counts, so that it is the same for both arms and at every look.
What follows from it is `judging.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, func, select

from tracker import tables
from tracker.likeness import UNSEEN, Likeness, left_by, likeness_of
from tracker.members import CHUNK
from tracker.trials import RUN_WEIGHT, UNKNOWN, Trial
from tracker.types import Record

RUN_EPISODES: Final = 400
"""The newest of a run, from before the trial, that tell what is to be expected at a new task."""

Task = tuple[str, str, str]
"""Tenant, run, digest."""


class Expected(Record, frozen=True):
    """At one task."""

    mean: float | None
    num_before: int
    likeness: Likeness


class _OfRun(Record, frozen=True):
    mean: float | None = None
    likeness: Likeness = UNSEEN


def expected(connection: Connection, trial: Trial, rows: Sequence[Row[Any]]) -> Callable[[Row[Any]], Expected]:
    """What an episode's task had before the trial, on average, and how many attempts that were; at a new task, what
    the newest attempts of its run had."""
    episodes = tables.episodes
    until = (episodes.c.archived_ms < (trial.started_ms or 0), episodes.c.score.is_not(None))
    runs = {(row.tenant, row.run) for row in rows}
    tasks = _of_tasks(connection, {tenant for tenant, _ in runs}, sorted({row.task_digest for row in rows}), until)
    known = {named: _of_run(connection, named, until) for named in sorted(runs)}

    def at(row: Row[Any]) -> Expected:
        of_run = known[row.tenant, row.run]
        found = tasks.get((row.tenant, row.run, row.task_digest))
        if found is None:
            return Expected(of_run.mean, 0 if of_run.mean is None else RUN_WEIGHT, of_run.likeness)
        return Expected(*found, left_by(of_run.likeness, found[1], UNKNOWN))

    return at


def _of_tasks(
    connection: Connection, tenants: set[str], digests: Sequence[str], until: tuple[ColumnElement[bool], ...]
) -> dict[Task, tuple[float, int]]:
    """The mean score at each, and of how many attempts."""
    episodes = tables.episodes
    found: dict[Task, tuple[float, int]] = {}
    for start in range(0, len(digests), CHUNK):
        key = (episodes.c.tenant, episodes.c.run, episodes.c.task_digest)
        part = episodes.c.task_digest.in_(digests[start : start + CHUNK])
        statement = select(*key, func.avg(episodes.c.score), func.count())
        statement = statement.where(episodes.c.tenant.in_(tenants), part, *until).group_by(*key)
        for tenant, run, task, mean, number in connection.execute(statement):
            found[tenant, run, task] = (float(mean), number)
    return found


def _of_run(connection: Connection, named: tuple[str, str], until: tuple[ColumnElement[bool], ...]) -> _OfRun:
    """The mean of its newest scores, and how alike those of a group are."""
    episodes = tables.episodes
    where = (episodes.c.tenant == named[0], episodes.c.run == named[1], *until)
    statement = select(episodes.c.group_id, episodes.c.score).where(*where)
    newest = connection.execute(statement.order_by(episodes.c.created_ms.desc()).limit(RUN_EPISODES)).all()
    if not newest:
        return _OfRun()
    groups: dict[str, list[float]] = {}
    for group_id, score in newest:
        if group_id is not None:
            groups.setdefault(group_id, []).append(float(score))
    return _OfRun(sum(float(score) for _, score in newest) / len(newest), likeness_of(list(groups.values())))
