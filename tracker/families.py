"""Families of tasks: which one a task belongs to, and in which order a run's weights draw them. Pure.

A run may mix families ("cocktails"). A task belongs to the family whose name it begins with, followed by `/`; where
several fit, to the longest. The weights are kept group by group: after any number of groups each family has had its
share to within one group, so steps of any size hold the proportions, and what one step owes a family the next one
pays. Nothing but the counts so far goes in, so a restart goes on where it was. Which groups are there is left to the
trainer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Final

from tracker.errors import BadRequest
from tracker.types import RunSettings

SEPARATOR: Final = "/"


def family_of(task: str, families: Iterable[str]) -> str | None:
    """The family that a task belongs to; `None` if it is none of these.

    >>> [family_of(task, ["maths", "maths/hard"]) for task in ("maths/7", "maths/hard/7", "mathsy")]
    ['maths', 'maths/hard', None]
    """
    fits = [family for family in families if task.startswith(family + SEPARATOR)]
    return max(fits, key=len, default=None)


def check_task(task: str, run: RunSettings) -> None:
    """Refuse a task of no family of a run that has some."""
    if run.families and family_of(task, run.families) is None:
        begins = ", ".join(repr(family + SEPARATOR) for family in run.families)
        raise BadRequest(
            f"Task {task!r} is of no family of run {run.run!r}; begin its name with one of {begins}.",
            param="task",
            code="unknown_family",
        )


def next_families(weights: Mapping[str, float], taken: Mapping[str, int], num_groups: int) -> dict[str, int]:
    """How many groups of each family come next, after `taken`; all families are named, also those with 0.

    The quota method (Balinski and Young, Fair Representation, 1982): a family may have the next group while that takes
    it to less than one above its share, and of those the one whose next group is due first has it. From nothing on,
    every count stays within one of its share.

    >>> next_families({"maths": 3, "code": 1}, {}, 2), next_families({"maths": 3, "code": 1}, {"maths": 2}, 2)
    ({'maths': 2, 'code': 0}, {'maths': 1, 'code': 1})
    """
    total = sum(map(Fraction, weights.values()))
    shares = {family: Fraction(weight) / total for family, weight in weights.items()}
    counts = {family: taken.get(family, 0) for family in weights}
    num_taken = sum(counts.values())
    drawn: Counter[str] = Counter()
    for place in range(num_taken + 1, num_taken + num_groups + 1):
        family = min(
            (family for family, share in shares.items() if counts[family] < share * place),
            key=lambda family: (counts[family] + 1) / shares[family],
        )
        counts[family] += 1
        drawn[family] += 1
    return {family: drawn[family] for family in weights}
