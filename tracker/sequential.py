"""Comparing two arms while they run: evidence that may be looked at after every episode. Pure.

The rule: whoever looks as often as he likes, and stops when he likes, claims something false with probability `alpha`
at most. Each claim has an e-process: a product of factors whose expectation is at most 1 while the claim is false, so
that it ever reaches 1/alpha with probability alpha at most (Ville's inequality). No distribution is assumed, only
values in [0, 1] and an arm that was drawn with a known share before the value was known; the share may change.

The factor is the two-sample e-variable of Turner, Ly and Grünwald, "Generic E-variables for exact sequential k-sample
tests that allow for optional stopping" (2021, arXiv 2106.02693, section 3), for arms drawn at random and values between
0 and 1: with the means of the arms supposed to be `c` and `s`, and m = share·c + (1 − share)·s,

    factor = value · x/m + (1 − value) · (1 − x)/(1 − m)        where x is the mean of the arm that was drawn
           = 1 + (x − m)(value − m) / (m(1 − m)).

Where the truth is C and S its expectation is 1 + share(1 − share)(c − s)(C − S) / (m(1 − m)): at most 1 if C − S and
c − s have different signs, whatever m was. So m is guessed from what came before, of one task otherwise than of
another, and several differences are supposed at once, with weights (a mixture of e-processes is one). Other differences
than 0 are tested by shifting one arm's values. What the arms are, and what follows from a claim, is left to
`judging.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

Effects = tuple[tuple[float, float], ...]
EFFECTS: Final[Effects] = ((0.15, 0.1), (0.3, 0.8), (0.6, 0.1))
"""Differences that are supposed, each with its weight."""
BOLD: Final[Effects] = ((0.3, 0.2), (0.6, 0.4), (0.9, 0.4))
"""For values that scatter less than those that are only ever 0 or 1, as means of groups do."""
GUESS: Final = 0.5
"""What the mean is taken for before anything is known, as if it had been seen in `GUESSES` values."""
GUESSES: Final = 2.0
EDGE: Final = 0.02
"""How near to 0 and 1 a supposed mean may be: one value must not be able to end everything."""
STEPS: Final = 20
"""In how many steps of the whole range bounds are looked for, each way."""


class Drawn(NamedTuple):
    """One value of one arm."""

    is_canary: bool
    share: float
    """The probability with which it was to be the canary's."""
    value: float
    """In [0, 1]."""
    guess: float | None = None
    """What was to be expected of it, whatever the arm, by what was known before; `None`: nothing was."""
    weight: float = 1.0
    """The power that its factor is raised to, 1 at most: less where other values say the same (`likeness.py`)."""


class Comparison:
    """Evidence on the difference of two means, canary minus stable: is it below, is it above `shift`?

    >>> compared = Comparison()
    >>> for _ in range(20):
    ...     compared.feed(Drawn(True, 0.5, 0.0))
    ...     compared.feed(Drawn(False, 0.5, 1.0))
    >>> compared.below > 1000 > 1 > compared.above
    True
    """

    __slots__ = ("_above", "_below", "_effects", "_num", "_shift", "_sum", "above", "below")

    def __init__(self, shift: float = 0.0, effects: Effects = EFFECTS) -> None:
        self._shift = shift
        self._effects = effects
        self._num = 0
        self._sum = 0.0
        self._below = [1.0] * len(effects)
        self._above = [1.0] * len(effects)
        self.below = 1.0
        """The evidence that the difference is below `shift`."""
        self.above = 1.0
        """The same for above."""

    def feed(self, drawn: Drawn) -> None:
        """Take one more value into account."""
        value = self._placed(drawn.value - self._shift if drawn.is_canary else drawn.value)
        mean = (self._sum + GUESS * GUESSES) / (self._num + GUESSES)
        if drawn.guess is not None:
            mean = self._placed(drawn.guess - self._shift * drawn.share)
        mean = min(max(mean, EDGE), 1 - EDGE)
        for number, (effect, _) in enumerate(self._effects):
            self._below[number] *= _factor(drawn, value, mean, -effect) ** drawn.weight
            self._above[number] *= _factor(drawn, value, mean, effect) ** drawn.weight
        self._num += 1
        self._sum += value
        self.below, self.above = _mixed(self._below, self._effects), _mixed(self._above, self._effects)

    def _placed(self, value: float) -> float:
        """A value that may have been shifted, in [0, 1]."""
        return (value + abs(self._shift)) / (1 + 2 * abs(self._shift))


class Exceeding:
    """Evidence that something happens more often, or is more on average, than `level`: one arm by itself.

    The factor is 1 + (x − level)(value − level) / (level(1 − level)), whose expectation is at most 1 while the mean is
    at most `level` (betting on a mean: Waudby-Smith and Ramdas, 2023, arXiv 2010.09686, section 4).
    """

    __slots__ = ("_level", "_wealth", "evidence")

    def __init__(self, level: float) -> None:
        self._level = min(max(level, EDGE), 1 - EDGE)
        self._wealth = [1.0] * len(EFFECTS)
        self.evidence = 1.0

    def feed(self, value: float) -> None:
        level = self._level
        slope = (value - level) / (level * (1 - level))
        for number, (effect, _) in enumerate(EFFECTS):
            self._wealth[number] *= 1 + slope * min(effect, (1 - EDGE) * (1 - level))
        self.evidence = _mixed(self._wealth, EFFECTS)


def bounds(
    drawn: Sequence[Drawn], alpha_lower: float, alpha_upper: float, effects: Effects = EFFECTS
) -> tuple[float, float]:
    """Lower and upper bound of the difference of the means, each valid at all times with its alpha.

    They are looked for on a grid of 1/20 of the range; what no value can show is bounded by -1 and 1.

    >>> bounds([Drawn(number % 2 == 0, 0.5, 0.5) for number in range(400)], 0.01, 0.01)
    (-0.05, 0.05)
    """
    lower, upper = -1.0, 1.0
    for step in range(-STEPS, STEPS + 1):
        shift = step / STEPS
        below, above = _most(drawn, Comparison(shift, effects))
        if above >= 1 / alpha_lower:
            lower = max(lower, shift)
        if below >= 1 / alpha_upper:
            upper = min(upper, shift)
    return lower, upper


def _most(drawn: Iterable[Drawn], compared: Comparison) -> tuple[float, float]:
    """The most evidence that there ever was that the difference is below, and above."""
    below = above = 1.0
    for each in drawn:
        compared.feed(each)
        below, above = max(below, compared.below), max(above, compared.above)
    return below, above


def _factor(drawn: Drawn, value: float, mean: float, difference: float) -> float:
    """The e-variable of one value, with `mean` supposed for both arms together and `difference` between them, as far as
    there is room for it."""
    canary, stable = difference * (1 - drawn.share), -difference * drawn.share
    room = min(1.0, _room(canary, mean), _room(stable, mean))
    distance = canary if drawn.is_canary else stable
    return 1 + room * distance * (value - mean) / (mean * (1 - mean))


def _room(distance: float, mean: float) -> float:
    if distance == 0:
        return 1.0
    return (1 - EDGE) * ((1 - mean) / distance if distance > 0 else mean / -distance)


def _mixed(wealth: Sequence[float], effects: Effects) -> float:
    return sum(weight * each for (_, weight), each in zip(effects, wealth, strict=True))
