"""The newest episodes of a run for pages: what they came to, and how much there is of each run.

Bounded by the number of episodes that are looked at, over indexes that begin with the tenant: these are read every few
seconds while somebody looks. Rewards are the scores that lists are filtered by (`finding.py` keeps them up to date).
What is made of the episodes is left to `outcomes.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, func, select

from tracker import tables
from tracker.episode_rows import spent_of
from tracker.members import collected
from tracker.outcomes import Played, Progress, outcome_of, version_outcomes
from tracker.overview import RunCounts
from tracker.registry import run_settings
from tracker.sql import Database
from tracker.types import EpisodeState, KeyUsage

NEWEST: Final = 2_000
"""How many episodes are looked at."""


class OutcomeReading(Database):
    """What runs came to, for whoever looks."""

    async def progress(self, tenant: str, run: str, threshold: float, newest: int = NEWEST) -> Progress:
        """The newest archived episodes of a run; raises `NotFound`."""
        return await self.read(_progress, tenant, run, threshold, newest)

    async def newest_run(self, tenant: str) -> str | None:
        """The run of the tenant's newest episode that was archived; `None` where there is none."""
        return await self.read(_newest_run, tenant)

    async def run_counts(self, tenant: str) -> dict[str, RunCounts]:
        """run -> its episodes and groups by state; runs without any are left out."""
        return await self.read(_run_counts, tenant)

    async def usage_by_day(self, tenant: str, first_day: int) -> dict[int, KeyUsage]:
        """day -> what calls with the tenant's keys took on it, from this day on."""
        return await self.read(_usage_by_day, tenant, first_day)


def _progress(connection: Connection, tenant: str, run: str, threshold: float, newest: int) -> Progress:
    settings = run_settings(connection, tenant, run)
    played = _newest(connection, tenant, run, newest + 1)
    is_whole, played = len(played) <= newest, played[:newest]
    return Progress(
        run=run,
        threshold=threshold,
        is_whole=is_whole,
        total=outcome_of(played, threshold),
        versions=version_outcomes(played, list(settings.families), threshold),
    )


def _newest(connection: Connection, tenant: str, run: str, limit: int) -> list[Played]:
    episodes, pins = tables.episodes, tables.episode_policies
    names = ("episode_id", "task", "score", "engine_ms", "prompt_tokens", "sampled_tokens", "upstream_cost")
    where = (episodes.c.tenant == tenant, episodes.c.run == run)
    archived = (episodes.c.state == EpisodeState.ARCHIVED, episodes.c.deleted_ms.is_(None))
    newest_first = (episodes.c.created_ms.desc(), episodes.c.episode_id.desc())
    statement = select(*(episodes.c[name] for name in names)).where(*where, *archived).order_by(*newest_first)
    rows = connection.execute(statement.limit(limit)).all()
    by_episode = collected(connection, select(pins), pins.c.episode_id, [row.episode_id for row in rows])
    return [
        Played(
            episode_id=row.episode_id,
            task=row.task,
            score=row.score,
            spent=spent_of(row),
            versions=tuple((pin.policy, pin.version) for pin in by_episode.get(row.episode_id, ())),
        )
        for row in rows
    ]


def _newest_run(connection: Connection, tenant: str) -> str | None:
    episodes = tables.episodes
    where = (
        episodes.c.tenant == tenant,
        episodes.c.state == EpisodeState.ARCHIVED,
        episodes.c.deleted_ms.is_(None),
    )
    newest_first = (episodes.c.created_ms.desc(), episodes.c.episode_id.desc())
    return connection.execute(select(episodes.c.run).where(*where).order_by(*newest_first).limit(1)).scalar()


def _run_counts(connection: Connection, tenant: str) -> dict[str, RunCounts]:
    episodes, groups = tables.episodes, tables.groups
    counted = (
        select(episodes.c.run, episodes.c.state, func.count(), func.max(episodes.c.created_ms))
        .where(episodes.c.tenant == tenant, episodes.c.deleted_ms.is_(None))
        .group_by(episodes.c.run, episodes.c.state)
    )
    of_episodes: defaultdict[str, dict[str, int]] = defaultdict(dict)
    newest: defaultdict[str, int] = defaultdict(int)
    for run, state, number, newest_ms in connection.execute(counted):
        of_episodes[run][state] = number
        newest[run] = max(newest[run], newest_ms)
    of_groups: defaultdict[str, dict[str, int]] = defaultdict(dict)
    by_state = select(groups.c.run, groups.c.state, func.count()).where(groups.c.tenant == tenant)
    for run, state, number in connection.execute(by_state.group_by(groups.c.run, groups.c.state)):
        of_groups[run][state] = number
    return {
        run: RunCounts(episodes=of_episodes[run], groups=of_groups[run], newest_ms=newest.get(run))
        for run in {**of_episodes, **of_groups}
    }


def _usage_by_day(connection: Connection, tenant: str, first_day: int) -> dict[int, KeyUsage]:
    keys, usage = tables.keys, tables.key_usage
    sums = [func.sum(usage.c[name]) for name in ("calls", "prompt_tokens", "sampled_tokens")]
    statement = (
        select(usage.c.day, *sums)
        .join(keys, keys.c.key_id == usage.c.key_id)
        .where(keys.c.tenant == tenant, usage.c.day >= first_day)
        .group_by(usage.c.day)
        .order_by(usage.c.day)
    )
    rows: Sequence[Any] = connection.execute(statement).all()
    return {
        int(day): KeyUsage(calls=int(calls), prompt_tokens=int(prompt), sampled_tokens=int(sampled))
        for day, calls, prompt, sampled in rows
    }
