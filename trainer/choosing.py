"""Which of the ready groups make the next step of a run, or what is waited for. Pure.

The rule: groups are taken in the order in which they became ready. Where a run mixes families, a step holds as many
groups of each as `tracker/families.py` says is next, again in that order; it is not taken before all of them are there,
so that a slow family gets its share, and what is ready beyond it stays for later steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracker.families import family_of, next_families
from tracker.types import Group, RunSettings


@dataclass(frozen=True, slots=True)
class Choice:
    """The groups of a step; without any, what is waited for."""

    group_ids: tuple[str, ...] = ()
    waits: str = ""


def choose(ready: Sequence[Group], run: RunSettings, tasks_taken: Mapping[str, int]) -> Choice:
    """Choose from the run's ready groups, oldest first; `tasks_taken` is task -> groups taken so far.

    >>> choose([], RunSettings(run="a", groups_per_step=4), {}).waits
    '0 of 4 groups ready in run a'
    """
    if not run.families:
        chosen = ready[: run.groups_per_step]
        if len(chosen) == run.groups_per_step:
            return Choice(tuple(group.group_id for group in chosen))
        return Choice(waits=f"{len(chosen)} of {run.groups_per_step} groups ready in run {run.run}")
    wanted = next_families(run.families, families_taken(tasks_taken, run), run.groups_per_step)
    by_family = {
        family: [group for group in ready if family_of(group.task, run.families) == family] for family in wanted
    }
    short = {family: num for family, num in wanted.items() if len(by_family[family]) < num}
    if short:
        told = [f"{len(by_family[family])} of {num} groups of family {family} ready" for family, num in short.items()]
        return Choice(waits=f"{' and '.join(told)} in run {run.run}")
    chosen_ids = {group.group_id for family, num in wanted.items() for group in by_family[family][:num]}
    return Choice(tuple(group.group_id for group in ready if group.group_id in chosen_ids))


def families_taken(tasks_taken: Mapping[str, int], run: RunSettings) -> dict[str, int]:
    """family -> groups taken so far."""
    counts: Counter[str] = Counter()
    for task, num_groups in tasks_taken.items():
        family = family_of(task, run.families)
        if family is not None:
            counts[family] += num_groups
    return dict(counts)
