"""The part of the ledger that changes rarely: secrets and runs.

A run's settings may change until its first episode exists; from then on they are frozen, because what episodes are
compared by must not move. The run `default` exists in every tenant without a row; its row is written when it is first
needed. Keys are in `keys.py`.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Select, select, update

from tracker import tables
from tracker.audit import record_act
from tracker.clock import Clock
from tracker.errors import Conflict, NotFound
from tracker.sql import Database, insert_new
from tracker.types import DEFAULT, Act, RunSettings

SECRET_BYTES: Final = 32
NEVER_FROZEN: Final = frozenset({"retention"})
"""Settings of a run that episodes are not compared by."""


class Registry(Database):
    """Secrets and runs."""

    _clock: Clock

    async def secret(self, name: str) -> bytes:
        """32 random bytes under this name, created at first use, the same for every gateway."""
        return await self.read(_find_secret, name) or await self.write(_secret, name)

    async def put_run(self, tenant: str, run: RunSettings, act: Act | None = None) -> RunSettings:
        """Create or change; `Conflict` naming the field if it froze and differs. Once frozen, a reward name that is
        left out keeps its weight: it may have got it later."""
        return await self.write(_put_run, tenant, run, self._clock.now_ms(), act)

    async def weigh_reward(
        self, tenant: str, run: str, name: str, weight: float, act: Act | None = None
    ) -> RunSettings:
        """Give a reward name of a run a weight, also where the run froze: no reward that counts may have the name yet.

        `Conflict` if the name has another weight that counts, or counts as 1 for rewards that have it. What was
        compared by then stays as it was; groups that were not taken yet are compared by all that counts."""
        return await self.write(_weigh, (tenant, run), name, weight, self._clock.now_ms(), act)

    async def get_run(self, tenant: str, run: str) -> RunSettings:
        return await self.read(run_settings, tenant, run)

    async def list_runs(self, tenant: str) -> list[RunSettings]:
        """By name, `default` first."""
        return await self.read(_list_runs, tenant)


def run_settings(connection: Connection, tenant: str, run: str) -> RunSettings:
    """The settings of a run; raises `NotFound` if the tenant has none of this name."""
    found = connection.execute(_run_row(tenant, run)).scalar_one_or_none()
    if found is not None:
        return _decode_run(found)
    if run == DEFAULT:
        return RunSettings(run=DEFAULT)
    raise _no_run(run)


def all_runs(connection: Connection) -> list[tuple[str, RunSettings]]:
    """(tenant, settings) of every run that has a row."""
    runs = tables.runs
    rows = connection.execute(select(runs.c.tenant, runs.c.settings).order_by(runs.c.tenant, runs.c.run))
    return [(row.tenant, _decode_run(row.settings)) for row in rows]


def lock_run(connection: Connection, tenant: str, run: str, now_ms: int) -> RunSettings:
    """The settings of a run, its row locked: places in the rounds of one run are given one after the other."""
    if run == DEFAULT:
        insert_new(connection, tables.runs, _run_values(tenant, RunSettings(run=DEFAULT), now_ms))
    found = connection.execute(_run_row(tenant, run).with_for_update()).scalar_one_or_none()
    if found is None:
        raise _no_run(run)
    return _decode_run(found)


def adopt_run(connection: Connection, tenant: str, run: RunSettings, now_ms: int) -> None:
    """Have a run of another installation here, frozen; `Conflict` naming the field if one of its name differs."""
    runs = tables.runs
    if insert_new(connection, runs, {**_run_values(tenant, run, now_ms), "frozen": True}):
        return
    _refuse_change(run_settings(connection, tenant, run.run), run)
    freeze_run(connection, tenant, run.run)


def _weigh(
    connection: Connection, named: tuple[str, str], name: str, weight: float, now_ms: int, act: Act | None
) -> RunSettings:
    run = lock_run(connection, *named, now_ms)
    current = run.reward_weights.get(name, 1.0)
    if current not in (0.0, weight) and (name in run.reward_weights or _is_rewarded(connection, named, name)):
        raise Conflict(
            f"Rewards named {name!r} weigh {current:g} in run {run.run!r} and count already; use another name.",
            param="name",
            code="run_frozen",
        )
    if run.reward_weights.get(name) == weight:
        return run
    changed = msgspec.structs.replace(run, reward_weights={**run.reward_weights, name: weight})
    runs, episodes = tables.runs, tables.episodes
    where = (runs.c.tenant == named[0], runs.c.run == named[1])
    connection.execute(update(runs).where(*where).values(settings=msgspec.json.encode(changed)))
    of_run = (episodes.c.tenant == named[0], episodes.c.run == named[1], episodes.c.deleted_ms.is_(None))
    connection.execute(update(episodes).where(*of_run).values(is_scored=False))
    record_act(connection, act)
    return changed


def _is_rewarded(connection: Connection, named: tuple[str, str], name: str) -> bool:
    rewards, episodes = tables.rewards, tables.episodes
    joined = rewards.join(episodes, rewards.c.episode_id == episodes.c.episode_id)
    where = (episodes.c.tenant == named[0], episodes.c.run == named[1], rewards.c.name == name)
    statement = select(rewards.c.seq).select_from(joined).where(*where).limit(1)
    return connection.execute(statement).one_or_none() is not None


def freeze_run(connection: Connection, tenant: str, run: str) -> None:
    """From now on the settings cannot change."""
    runs = tables.runs
    statement = update(runs).where(runs.c.tenant == tenant, runs.c.run == run, runs.c.frozen.is_(False))
    connection.execute(statement.values(frozen=True))


def _find_secret(connection: Connection, name: str) -> bytes | None:
    statement = select(tables.secrets.c.value).where(tables.secrets.c.name == name)
    return connection.execute(statement).scalar_one_or_none()


def _secret(connection: Connection, name: str) -> bytes:
    insert_new(connection, tables.secrets, {"name": name, "value": secrets.token_bytes(SECRET_BYTES)})
    return connection.execute(select(tables.secrets.c.value).where(tables.secrets.c.name == name)).scalar_one()


def _put_run(connection: Connection, tenant: str, run: RunSettings, now_ms: int, act: Act | None) -> RunSettings:
    runs = tables.runs
    record_act(connection, act)
    if insert_new(connection, runs, _run_values(tenant, run, now_ms)):
        return run
    where = (runs.c.tenant == tenant, runs.c.run == run.run)
    row = connection.execute(select(runs.c.settings, runs.c.frozen).where(*where).with_for_update()).one()
    if row.frozen:
        stored = _decode_run(row.settings)
        run = msgspec.structs.replace(run, reward_weights={**stored.reward_weights, **run.reward_weights})
        _refuse_change(stored, run)
    connection.execute(update(runs).where(*where).values(settings=msgspec.json.encode(run)))
    return run


def _refuse_change(stored: RunSettings, asked: RunSettings) -> None:
    for field in RunSettings.__struct_fields__:
        if field in NEVER_FROZEN:
            continue
        old, new = getattr(stored, field), getattr(asked, field)
        if old != new:
            raise Conflict(
                f"{field} of run {stored.run!r} is {_shown(old)} since its first episode and cannot become "
                f"{_shown(new)}; start another run.",
                param=field,
                code="run_frozen",
            )


def _shown(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _list_runs(connection: Connection, tenant: str) -> list[RunSettings]:
    runs = tables.runs
    statement = select(runs.c.settings).where(runs.c.tenant == tenant)
    found = {run.run: run for run in map(_decode_run, connection.execute(statement).scalars())}
    first = found.pop(DEFAULT, RunSettings(run=DEFAULT))
    return [first, *(found[name] for name in sorted(found))]


def _run_row(tenant: str, run: str) -> Select[Any]:
    return select(tables.runs.c.settings).where(tables.runs.c.tenant == tenant, tables.runs.c.run == run)


def _run_values(tenant: str, run: RunSettings, now_ms: int) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "run": run.run,
        "settings": msgspec.json.encode(run),
        "frozen": False,
        "created_ms": now_ms,
    }


def _decode_run(settings: bytes) -> RunSettings:
    return msgspec.json.decode(settings, type=RunSettings)


def _no_run(run: str) -> NotFound:
    return NotFound(
        f"There is no run {run!r}; create it with POST /v1/runs, or leave run out for `default`.", param="run"
    )
