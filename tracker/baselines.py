"""From returns to advantages: mean, deviation, leave-one-out, over the episodes of a group.

The unit is the episode, whatever number of rows it gives: long episodes do not bend the baseline. An advantage is 0
where there is nothing to compare, one episode or values within `TOLERANCE`; only kind `none`, which has no baseline,
passes values through. Which value stands for an episode is for `credit.py` to say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tracker.errors import SettingsError
from tracker.types import Credit, Record

TOLERANCE: Final = 1e-6
"""Values whose range is within this are equal."""
EPSILON: Final = 1e-4
"""Added to the deviation, as TRL's GRPO does."""
KINDS: Final = ("group", "rloo", "batch", "none")


class Baseline(Record, frozen=True):
    """What the values of a group are compared with."""

    kind: str
    values: dict[str, float]
    """episode_id -> its value, members only."""
    scale: float | None = None
    """What differences are divided by; `None` leaves them as they are."""

    @property
    def is_flat(self) -> bool:
        """Whether there is nothing to compare."""
        values = self.values.values()
        return len(values) < 2 or max(values) - min(values) <= TOLERANCE

    def advantage(self, episode_id: str, value: float) -> float:
        """How much better `value`, of that episode, is than what the group's episodes are worth.

        >>> Baseline(kind="group", values={"a": 1.0, "b": 0.0}).advantage("a", 1.0)
        0.5
        >>> Baseline(kind="rloo", values={"a": 1.0, "b": 0.0}).advantage("a", 1.0)
        1.0
        """
        if self.kind == "none":
            return value
        if self.is_flat:
            return 0.0
        others = [other for key, other in self.values.items() if self.kind != "rloo" or key != episode_id]
        difference = value - mean(others)
        return difference if self.scale is None else difference / self.scale


def baseline(credit: Credit, values: Mapping[str, float], step_values: Sequence[float] = ()) -> Baseline:
    """The baseline of a group; `step_values` are those of all groups of the step, for kind `batch`.

    Group: (x − mean) / (std + ε), or x − mean without `std`. Rloo: x − mean of the others. Batch: (x − mean) / (std of
    the step + ε). Deviations have one degree of freedom less than values.
    """
    if credit.kind not in KINDS:
        raise SettingsError(f"credit kind {credit.kind!r} is unknown; write one of {', '.join(KINDS)}", param="credit")
    spread: Sequence[float] = ()
    if credit.kind == "batch":
        spread = step_values
    elif credit.kind == "group" and credit.std:
        spread = tuple(values.values())
    scale = deviation(spread) + EPSILON if spread else None
    return Baseline(kind=credit.kind, values=dict(values), scale=scale)


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean, exact before rounding, so that it does not depend on the order."""
    listed = list(values)
    return math.fsum(listed) / len(listed)


def deviation(values: Sequence[float]) -> float:
    """Sample standard deviation (ddof 1); 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) * (value - centre) for value in values) / (len(values) - 1))
