"""In which order ready groups are taken, and which groups a step has to wait for so that none gets too stale. Pure.

Groups are taken in the order in which they became ready, but for those at their bound, which the next version would
make too stale: they go first. Under `on_stale: wait` the oldest go first, and a step is not taken while its version
would be one too many for a group that is still being played: either at once, or because more groups than later steps
can take would then be due. While no more groups are in flight than the gateway lets in, none passes its bound (the test
plays it through). What is waited for ends: its episodes do, and at the run's `group_timeout_s` the group is settled
without them. A version makes the groups of every run older, so a step of one run waits for those of others. What passes
the bound all the same is not trained (`taking.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from tracker.types import Group, GroupState, InFlight, RunSettings

Runs = Mapping[tuple[str, str], RunSettings]
"""(tenant, run) -> settings."""


def in_order(ready: Sequence[Group], in_flight: Iterable[InFlight], run: RunSettings) -> list[Group]:
    """The ready groups of a run in the order in which they are taken, from that in which they became ready."""
    lags = {group.group_id: group.lag for group in in_flight}
    match run.on_stale:
        case "wait":
            return sorted(ready, key=lambda group: -lags.get(group.group_id, 0))
        case "expire":
            return sorted(ready, key=lambda group: lags.get(group.group_id) != run.staleness)
        case _:
            return list(ready)


def held_up_by(in_flight: Sequence[InFlight], chosen: Collection[str], runs: Runs, now_ms: int) -> list[InFlight]:
    """The groups that are still played and must be in before `chosen`, groups of one run, are taken as a step."""
    taken = [group for group in in_flight if group.group_id in chosen]
    of_step = {(group.tenant, group.run) for group in taken}
    held: list[InFlight] = []
    for named, run in runs.items():
        if run.on_stale != "wait":
            continue
        rest = [group for group in in_flight if (group.tenant, group.run) == named and group.group_id not in chosen]
        rest = [group for group in rest if group.lag <= run.staleness and _will_count(group, run, now_ms)]
        held += _due(rest, taken, run) if named in of_step else _played(rest, run.staleness)
    return held


def _due(rest: Sequence[InFlight], taken: Sequence[InFlight], run: RunSettings) -> list[InFlight]:
    """Groups that are played and would, after this step, be among more than the steps left to them can take.

    `num_steps` is how many steps that is; a step that holds nothing but such groups gains nothing by waiting.
    """
    for num_steps in range(run.staleness + 1):
        lag = run.staleness - num_steps
        played = _played(rest, lag)
        num_due = sum(group.lag >= lag for group in rest)
        if played and num_due > num_steps * run.groups_per_step and any(group.lag < lag for group in taken):
            return played
    return []


def _played(groups: Iterable[InFlight], lag: int) -> list[InFlight]:
    """Those that are this old, or older, and not ready."""
    return [group for group in groups if group.state == GroupState.OPEN and group.lag >= lag]


def _will_count(group: InFlight, run: RunSettings, now_ms: int) -> bool:
    """Whether it is ready or can be expected to be: it is played, or all places are held, and its time is not up."""
    if group.state != GroupState.OPEN:
        return group.state == GroupState.READY
    is_up = now_ms - group.created_ms >= run.group_timeout_s * 1000
    return not is_up and (group.num_live > 0 or group.num_seated == group.size)


def why_held(held: Sequence[InFlight], runs: Runs) -> str:
    """What is waited for, in one line."""
    first = held[0]
    run = runs[first.tenant, first.run]
    others = f" and {len(held) - 1} more" if len(held) > 1 else ""
    return (
        f"group of task {first.task!r} (round {first.round}) of run {first.run}{others}: {first.num_live} of "
        f"{first.size} attempts are played, and another version would make them too stale (staleness {run.staleness}); "
        f"settled at its timeout of {run.group_timeout_s:.0f} s at the latest"
    )
