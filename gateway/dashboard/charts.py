"""Numbers as drawings: inline SVG that a page carries, made here and by no script. Pure.

A drawing has no style of its own: classes name what a thing is (`s1` the first series, `band`, `grid`), and the
style sheets say how that looks in light and dark. It tells itself to whoever cannot see it by a title and a
description, and is never the only place where a number stands: pages have a table beside it. Series differ by dashes
as well as by colour. Text is escaped, so that a name out of data is only ever text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

from gateway.dashboard.wording import number

Values = tuple[float | None, ...]
"""One for each place on the x axis; `None` where nothing was measured."""

WIDTH: Final = 400
HEIGHT: Final = 190
WIDE: Final = 820
COLUMN_HEIGHT: Final = 150
LEFT: Final = 46
RIGHT: Final = 12
TOP: Final = 10
BOTTOM: Final = 24
MAX_HITS: Final = 160
"""Above so many places none of them tells its numbers when it is pointed at: the page would be large."""
NUM_SERIES: Final = 6
"""How many series the style sheet tells apart."""
X_LABELS: Final = 5
Y_TICKS: Final = 4
MAX_CENTRED: Final = 3
"""So many characters fit under the last place without reaching beyond the drawing."""
MAX_DIGITS: Final = 6
"""Fewer than so many stand behind the point of a tick's name: there is room for no more."""


@dataclass(frozen=True, slots=True)
class Line:
    """One series."""

    name: str
    values: Values
    low: Values = ()
    high: Values = ()
    """The interval around each value; empty where there is none."""
    is_faint: bool = False
    """Drawn thin, as the noise behind its average."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over one x axis."""

    title: str
    labels: tuple[str, ...]
    """What each place on the x axis is called."""
    lines: tuple[Line, ...]
    x_name: str = "step"
    marks: tuple[tuple[int, str], ...] = ()
    """(place, what happened there): a line across."""
    floor: float | None = None
    ceiling: float | None = None
    """What the y axis reaches at least."""
    is_percent: bool = False
    is_wide: bool = False


def line_chart(chart: Chart) -> Markup:
    """The chart as SVG; one line of text where nothing was measured."""
    lowest, highest = _reach(chart)
    if math.isinf(lowest):
        return Markup('<p class="chart-empty">Nothing was measured yet.</p>')
    ticks = nice_ticks(lowest, highest)
    frame = _Frame(num_places=len(chart.labels), low=ticks[0], high=ticks[-1], width=WIDE if chart.is_wide else WIDTH)
    parts = [
        f'<svg class="chart" role="img" viewBox="0 0 {frame.width} {HEIGHT}" xmlns="http://www.w3.org/2000/svg">',
        f"<title>{escape(chart.title)}</title><desc>{escape(description(chart))}</desc>",
        *_grid(frame, ticks, chart.is_percent),
        *_x_labels(frame, chart),
        *_marks(frame, chart),
        *(_band(frame, index, line) for index, line in _numbered(chart.lines)),
        *(_path(frame, index, line) for index, line in _numbered(chart.lines)),
        *_hits(frame, chart),
        "</svg>",
    ]
    return Markup("".join(parts))  # noqa: S704 - every text in it was escaped


def legend(chart: Chart) -> Markup:
    """Which line is which; nothing where there is one."""
    shown = [(index, line) for index, line in _numbered(chart.lines) if not line.is_faint]
    if len(shown) < 2:
        return Markup("")
    items = "".join(
        f'<li><svg class="key" viewBox="0 0 18 8" aria-hidden="true"><path class="line s{index}" d="M0 4H18"/></svg>'
        f"{escape(line.name)}</li>"
        for index, line in shown
    )
    return Markup(f'<ul class="legend">{items}</ul>')  # noqa: S704


def sparkline(values: Sequence[float | None], title: str) -> Markup:
    """A line without axes, for a row of a table."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Markup("")
    low, high = min(known), max(known)
    spread = (high - low) or 1.0
    places = [
        (2 + 96 * place / (len(values) - 1), 22 - 20 * (value - low) / spread)
        for place, value in enumerate(values)
        if value is not None
    ]
    last_x, last_y = places[-1]
    return Markup(  # noqa: S704
        '<svg class="spark" role="img" viewBox="0 0 100 24" preserveAspectRatio="none">'
        f'<title>{escape(title)}</title><path class="line s1" d="{_polyline(places)}"/>'
        f'<circle class="dot f1" cx="{last_x:.1f}" cy="{last_y:.1f}" r="1.8"/></svg>'
    )


def interval(mean: float, low: float, high: float, reach: tuple[float, float]) -> Markup:
    """A mean with its interval on a scale that all rows of a table share; the numbers stand beside it."""
    least, most = reach
    spread = (most - least) or 1.0
    left, middle, right = (2 + 96 * (min(max(v, least), most) - least) / spread for v in (low, mean, high))
    return Markup(  # noqa: S704
        '<svg class="interval" viewBox="0 0 100 16" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="axis" d="M2 8H98"/><path class="whisker" d="M{left:.1f} 4V12M{left:.1f} 8H{right:.1f}'
        f'M{right:.1f} 4V12"/><rect class="mean" x="{middle - 1.5:.1f}" y="3" width="3" height="10"/></svg>'
    )


def bars(title: str, rows: Sequence[tuple[str, float]]) -> Markup:
    """Horizontal bars with their names and numbers, longest first as they come."""
    if not rows:
        return Markup("")
    most = max(value for _, value in rows) or 1.0
    height = 22 * len(rows)
    parts = [f'<svg class="chart sticks" role="img" viewBox="0 0 {WIDTH} {height}" xmlns="http://www.w3.org/2000/svg">']
    parts.append(f"<title>{escape(title)}</title><desc>{escape(_listed(rows))}</desc>")
    for place, (name, value) in enumerate(rows):
        y, length = 22 * place, 190 * max(0.0, value) / most
        parts.append(
            f'<text class="label" x="128" y="{y + 15}" text-anchor="end">{escape(_cut(name, 20))}</text>'
            f'<rect class="stick f1" x="136" y="{y + 4}" width="{length:.1f}" height="14" rx="2"/>'
            f'<text class="label" x="{142 + length:.1f}" y="{y + 15}">{escape(number(value))}</text>'
        )
    return Markup("".join([*parts, "</svg>"]))  # noqa: S704


def columns(title: str, rows: Sequence[tuple[str, float]]) -> Markup:
    """Upright bars, each over its name and under its number: a few days side by side."""
    if not rows:
        return Markup("")
    most = max(value for _, value in rows)
    if most <= 0:
        return Markup('<p class="chart-empty">Nothing yet.</p>')
    step, room = WIDE / len(rows), COLUMN_HEIGHT - 2 * BOTTOM
    parts = [f'<svg class="chart" role="img" viewBox="0 0 {WIDE} {COLUMN_HEIGHT}" xmlns="http://www.w3.org/2000/svg">']
    parts.append(f"<title>{escape(title)}</title><desc>{escape(_listed(rows))}</desc>")
    parts.append(f'<path class="axis" d="M0 {COLUMN_HEIGHT - BOTTOM}H{WIDE}"/>')
    for place, (name, value) in enumerate(rows):
        middle, height = step * (place + 0.5), room * max(0.0, value) / most
        top = COLUMN_HEIGHT - BOTTOM - height
        parts.append(
            f'<rect class="stick f1" x="{middle - 0.3 * step:.1f}" y="{top:.1f}" width="{0.6 * step:.1f}" '
            f'height="{height:.1f}" rx="2"/>'
            f'<text class="label" x="{middle:.1f}" y="{COLUMN_HEIGHT - 8}" text-anchor="middle">{escape(name)}</text>'
        )
        if value > 0:
            parts.append(
                f'<text class="label" x="{middle:.1f}" y="{top - 5:.1f}" text-anchor="middle">'
                f"{escape(number(value))}</text>"
            )
    return Markup("".join([*parts, "</svg>"]))  # noqa: S704


def description(chart: Chart) -> str:
    """A chart in words: where each line began, where it is, and between what it moved.

    >>> description(Chart("Reward", ("1", "2", "3"), (Line("reward", (0.1, None, 0.5)),)))
    'reward: 0.1 at step 1, 0.5 at step 3; between 0.1 and 0.5.'
    """
    told: list[str] = []
    for line in chart.lines:
        known = [(place, value) for place, value in enumerate(line.values) if value is not None]
        if line.is_faint or not known:
            continue
        (first, begun), (last, now) = known[0], known[-1]
        seen = [value for _, value in known]
        told.append(
            f"{line.name}: {_shown(begun, chart.is_percent)} at {chart.x_name} {chart.labels[first]}, "
            f"{_shown(now, chart.is_percent)} at {chart.x_name} {chart.labels[last]}; between "
            f"{_shown(min(seen), chart.is_percent)} and {_shown(max(seen), chart.is_percent)}."
        )
    told += [f"{what} at {chart.x_name} {chart.labels[place]}." for place, what in chart.marks]
    return " ".join(told)


def averaged(values: Sequence[float | None], span: int) -> Values:
    """The mean of each value and the `span - 1` before it; what was not measured counts for nothing.

    >>> averaged((1.0, 2.0, None, 6.0), 2)
    (1.0, 1.5, 2.0, 6.0)
    """
    found: list[float | None] = []
    for place in range(len(values)):
        known = [value for value in values[max(0, place - span + 1) : place + 1] if value is not None]
        found.append(math.fsum(known) / len(known) if known else None)
    return tuple(found)


def nice_ticks(low: float, high: float, number_of: int = Y_TICKS) -> tuple[float, ...]:
    """Round numbers that enclose a range, evenly spaced.

    >>> nice_ticks(0.03, 0.87)
    (0.0, 0.25, 0.5, 0.75, 1.0)
    >>> nice_ticks(5, 5)
    (4.5, 4.75, 5.0, 5.25, 5.5)
    """
    if high <= low:
        low, high = low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    raw = (high - low) / number_of
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999), 10 * power)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(round(place * step, 12) for place in range(first, last + 1))


def tick_names(ticks: Sequence[float], is_percent: bool) -> list[str]:
    """What stands beside ticks: as many digits behind the point as tell one from the next.

    >>> tick_names((0.998, 0.999, 1.0, 1.001), False), tick_names((0.0, 0.25, 0.5), True)
    (['0.998', '0.999', '1.000', '1.001'], ['0 %', '25 %', '50 %'])
    >>> tick_names((-0.5, 0.0, 0.5), False), tick_names((0.0, 2000.0), False)
    (['−0.5', '0.0', '0.5'], ['0', '2,000'])
    """
    shown = [100 * tick if is_percent else tick for tick in ticks]
    step = shown[1] - shown[0]
    digits = next((digits for digits in range(MAX_DIGITS) if math.isclose(round(step, digits), step)), None)
    if digits is None:
        return [_shown(tick, is_percent) for tick in ticks]
    return [f"{tick:,.{digits}f}".replace("-", "−") + (" %" if is_percent else "") for tick in shown]


def named_places(labels: Sequence[str], wanted: int) -> list[int]:
    """Places of the x axis that are named, evenly spaced: at round numbers where the labels are numbers without gaps.

    >>> named_places([str(step) for step in range(1, 7)], 5), named_places([str(step) for step in range(91, 121)], 5)
    ([0, 1, 2, 3, 4, 5], [9, 19, 29])
    >>> named_places(["0", "3", "40"], 5), named_places("abcdefghijkl", 5)
    ([0, 1, 2], [0, 5, 10])
    """
    last = len(labels) - 1
    strides = (factor * 10**power for power in range(9) for factor in (1, 2, 5))
    stride = next(stride for stride in strides if last <= stride * wanted)
    has_numbers = all(label.isdecimal() for label in labels)
    first = -int(labels[0]) % stride if has_numbers and int(labels[-1]) - int(labels[0]) == last else 0
    return list(range(first, last + 1, stride))


@dataclass(frozen=True, slots=True)
class _Frame:
    """From numbers to places on the drawing."""

    num_places: int
    low: float
    high: float
    width: int

    def x(self, place: int) -> float:
        room = self.width - LEFT - RIGHT
        return LEFT + (room / 2 if self.num_places < 2 else room * place / (self.num_places - 1))

    def y(self, value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - self.low) / (self.high - self.low))


def _reach(chart: Chart) -> tuple[float, float]:
    """The least and the greatest of what is drawn; infinities where there is nothing."""
    seen = [v for line in chart.lines for v in (*line.values, *line.low, *line.high) if v is not None]
    if not seen:
        return math.inf, -math.inf
    low = min(seen) if chart.floor is None else min(chart.floor, *seen)
    high = max(seen) if chart.ceiling is None else max(chart.ceiling, *seen)
    return low, low + 1.0 if high <= low and chart.floor is not None else high


def _numbered(lines: Iterable[Line]) -> Iterator[tuple[int, Line]]:
    """Each line with the number of its look; a faint one looks like the line behind it."""
    index = 0
    for line in lines:
        yield 1 + index % NUM_SERIES, line
        index += not line.is_faint


def _grid(frame: _Frame, ticks: Sequence[float], is_percent: bool) -> Iterator[str]:
    for tick, text in zip(ticks, tick_names(ticks, is_percent), strict=True):
        y = frame.y(tick)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{frame.width - RIGHT}"/>'
        yield f'<text class="label" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{text}</text>'


def _x_labels(frame: _Frame, chart: Chart) -> Iterator[str]:
    last = len(chart.labels) - 1
    for place in named_places(chart.labels, 2 * X_LABELS if chart.is_wide else X_LABELS):
        text = escape(_cut(chart.labels[place], 12))
        anchor = "end" if place == last and len(text) > MAX_CENTRED else "middle"
        yield f'<text class="label" x="{frame.x(place):.1f}" y="{HEIGHT - 7}" text-anchor="{anchor}">{text}</text>'


def _marks(frame: _Frame, chart: Chart) -> Iterator[str]:
    for place, what in chart.marks:
        x = frame.x(place)
        yield f'<path class="event" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"><title>{escape(what)}</title></path>'


def _band(frame: _Frame, index: int, line: Line) -> str:
    """The interval, piece by piece where it has gaps."""
    parts: list[str] = []
    for piece in _pieces(range(len(line.low)), lambda place: line.low[place] is not None):
        there = [(frame.x(place), frame.y(line.high[place] or 0.0)) for place in piece]
        back = [(frame.x(place), frame.y(line.low[place] or 0.0)) for place in reversed(piece)]
        parts.append(f"{_polyline([*there, *back])}Z")
    return f'<path class="band f{index}" d="{"".join(parts)}"/>' if parts else ""


def _path(frame: _Frame, index: int, line: Line) -> str:
    """The line, broken where nothing was measured; a value between two gaps is a dot."""
    parts: list[str] = []
    dots: list[str] = []
    shade = "faint" if line.is_faint else "line"
    for piece in _pieces(range(len(line.values)), lambda place: line.values[place] is not None):
        points = [(frame.x(place), frame.y(line.values[place] or 0.0)) for place in piece]
        parts.append(_polyline(points))
        if len(points) == 1:
            dots.append(f'<circle class="dot f{index}" cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="2.5"/>')
    return f'<path class="{shade} s{index}" d="{"".join(parts)}"/>{"".join(dots)}' if parts else ""


def _hits(frame: _Frame, chart: Chart) -> Iterator[str]:
    """Invisible columns that tell the numbers of a place when they are pointed at."""
    if len(chart.labels) > MAX_HITS:
        return
    width = (frame.width - LEFT - RIGHT) / max(1, len(chart.labels) - 1)
    for place, label in enumerate(chart.labels):
        told = [
            f"{line.name} {_shown(value, chart.is_percent)}"
            for line in chart.lines
            if (value := line.values[place]) is not None
        ]
        if told:
            x = frame.x(place) - width / 2
            text = escape(f"{chart.x_name} {label}: {', '.join(told)}")
            yield (
                f'<rect class="hit" x="{x:.1f}" y="{TOP}" width="{width:.1f}" height="{HEIGHT - TOP - BOTTOM}">'
                f"<title>{text}</title></rect>"
            )


def _pieces(places: Iterable[int], is_known: Callable[[int], bool]) -> Iterator[list[int]]:
    """Runs of places that are known."""
    piece: list[int] = []
    for place in places:
        if is_known(place):
            piece.append(place)
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _polyline(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _shown(value: float, is_percent: bool) -> str:
    return f"{number(100 * value)} %" if is_percent else number(value)


def _listed(rows: Iterable[tuple[str, float]]) -> str:
    return "; ".join(f"{name}: {number(value)}" for name, value in rows)


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[: chars - 1]}…"
