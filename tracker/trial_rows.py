"""The rows of trials: which draw arms now, which episodes are in them, how they end, and what is noted of a release.

Functions over a connection; whoever changes a trial holds the lock of its policy's row. A trial's transitions are
decided in `versions.py` (by what becomes of versions) and `releases.py` (by who asks for it).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, delete, insert, select, tuple_, update

from tracker import tables
from tracker.arms import Draw
from tracker.sql import insert_new
from tracker.trials import OPEN, ReleaseEvent, Trial, TrialState
from tracker.types import Arm

UNDECIDED: Final = (TrialState.WAITING, *OPEN)
"""States that an end may follow."""


def draws(connection: Connection, policy: str | None) -> list[Draw]:
    """The trials that take in new groups: of one policy where an episode calls no other, else of all."""
    trials = tables.trials
    where = [trials.c.state == TrialState.RUNNING, *([] if policy is None else [trials.c.policy == policy])]
    columns = (trials.c.policy, trials.c.version, trials.c.share, trials.c.salt)
    rows = connection.execute(select(*columns).where(*where)).all()
    return [Draw(policy=row.policy, version=row.version, share=row.share, salt=row.salt) for row in rows]


def note_arms(connection: Connection, episode_id: str, arms: Sequence[Arm]) -> None:
    """Put an episode down in the trials that its arms are of, as far as they go on."""
    if not arms:
        return
    running = {(draw.policy, draw.version) for draw in draws(connection, None)}
    for arm in arms:
        if (arm.policy, arm.version) in running:
            values = {"policy": arm.policy, "version": arm.version, "episode_id": episode_id}
            values |= {"is_canary": arm.is_canary, "share": arm.share}
            insert_new(connection, tables.trial_episodes, values)


def any_rolled_back(connection: Connection, arms: Sequence[Arm]) -> bool:
    """Whether one of these arms got a version that was rolled back since."""
    names = [(arm.policy, arm.version) for arm in arms if arm.is_canary]
    if not names:
        return False
    trials = tables.trials
    where = (tuple_(trials.c.policy, trials.c.version).in_(names), trials.c.state == TrialState.ROLLED_BACK)
    return connection.execute(select(trials.c.version).where(*where).limit(1)).first() is not None


def end_trials(connection: Connection, policy: str, which: ColumnElement[bool], state: TrialState, now_ms: int) -> None:
    """End trials of a policy that are not decided yet."""
    trials = tables.trials
    where = (trials.c.policy == policy, trials.c.state.in_(UNDECIDED), which)
    connection.execute(update(trials).where(*where).values(state=state, ended_ms=now_ms))


def set_trial(connection: Connection, policy: str, version: int, **values: Any) -> None:
    trials = tables.trials
    where = (trials.c.policy == policy, trials.c.version == version)
    connection.execute(update(trials).where(*where).values(values))


def find_trial(connection: Connection, policy: str, version: int) -> Trial | None:
    trials = tables.trials
    where = (trials.c.policy == policy, trials.c.version == version)
    row = connection.execute(select(trials).where(*where)).one_or_none()
    return None if row is None else trial_of(row)


def trials_in(connection: Connection, policy: str, states: Sequence[TrialState]) -> list[Trial]:
    """Oldest version first."""
    trials = tables.trials
    statement = select(trials).where(trials.c.policy == policy, trials.c.state.in_(states)).order_by(trials.c.version)
    return [trial_of(row) for row in connection.execute(statement)]


def trial_of(row: Row[Any]) -> Trial:
    fields = dict(row._mapping)  # pyright: ignore[reportPrivateUsage]
    fields["state"] = TrialState(row.state)
    return Trial(**fields)


def note_release(connection: Connection, event: ReleaseEvent | None) -> None:
    """Append what became of a version; nothing where it is none."""
    if event is None:
        return
    values = {name: getattr(event, name) for name in ReleaseEvent.__struct_fields__ if name != "seq"}
    connection.execute(insert(tables.release_events).values(values))


def drop_shadow(connection: Connection, policy: str, version: int) -> None:
    """A version after this one is no shadow any more: it was withdrawn."""
    shadows = tables.shadows
    connection.execute(delete(shadows).where(shadows.c.policy == policy, shadows.c.version > version))
