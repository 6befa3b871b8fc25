"""Numbers as drawings: valid, escaped, described, within their frame, without a style of their own."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from gateway.dashboard.charts import (
    HEIGHT,
    WIDTH,
    Chart,
    Line,
    averaged,
    bars,
    description,
    interval,
    legend,
    line_chart,
    nice_ticks,
    sparkline,
)

SVG = "{http://www.w3.org/2000/svg}"
NUMBERS = st.floats(-1e9, 1e9, allow_nan=False).filter(lambda value: value == 0 or abs(value) > 1e-9)
SERIES = st.lists(st.none() | NUMBERS, max_size=30)


def chart_of(*lines: Line, **more: object) -> Chart:
    size = len(lines[0].values)
    return Chart("Reward", tuple(str(place) for place in range(size)), lines, **more)  # type: ignore[arg-type]


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


@given(SERIES)
def test_any_numbers_make_a_drawing_within_its_frame(values: list[float | None]) -> None:
    drawn = str(line_chart(chart_of(Line("reward", tuple(values)))))
    known = [value for value in values if value is not None]
    if not known:
        assert "Nothing was measured yet" in drawn
        return
    root = parsed(drawn)
    paths = [node.get("d", "") for node in root.iter(f"{SVG}path") if node.get("class") == "line s1"]
    places = [(float(x), float(y)) for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", "".join(paths))]
    assert len(places) == len(known)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places)


@given(SERIES.filter(lambda values: any(value is not None for value in values)))
def test_a_higher_value_is_drawn_no_lower(values: list[float | None]) -> None:
    root = parsed(str(line_chart(chart_of(Line("reward", tuple(values))))))
    paths = "".join(node.get("d", "") for node in root.iter(f"{SVG}path") if node.get("class") == "line s1")
    heights = [float(y) for _, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", paths)]
    known = [value for value in values if value is not None]
    pairs = sorted(zip(known, heights, strict=True))
    assert all(lower >= higher for (_, lower), (_, higher) in pairwise(pairs))


@given(NUMBERS, NUMBERS)
def test_ticks_enclose_their_range_evenly(one: float, other: float) -> None:
    low, high = min(one, other), max(one, other)
    ticks = nice_ticks(low, high)
    slack = 1e-6 * (abs(low) + abs(high) + 1e-9)
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    assert 2 <= len(ticks) <= 8
    steps = [after - before for before, after in pairwise(ticks)]
    assert all(math.isclose(step, steps[0], rel_tol=1e-3) for step in steps)


def test_names_out_of_data_are_text() -> None:
    evil = "</title><script>alert(1)</script>"
    lines = (Line(evil, (1.0, 2.0)), Line("b", (1.0, 3.0)))
    chart = Chart(evil, (evil, "2"), lines, marks=((1, evil),))
    for drawn in (line_chart(chart), legend(chart), sparkline((1.0, 2.0), evil), bars(evil, [(evil, 1.0)])):
        assert "<script" not in str(drawn)
        assert "&lt;script&gt;" in str(drawn)
        parsed(str(drawn))


def test_a_drawing_has_no_style_and_no_script_of_its_own() -> None:
    line = Line("reward", (0.1, 0.4, None, 0.5), low=(0.0, 0.2, None, 0.4), high=(0.2, 0.6, None, 0.6))
    chart = chart_of(line, Line("noise", (0.0, 0.1, 0.2, 0.3), is_faint=True), marks=((2, "rollback"),))
    drawn = f"{line_chart(chart)}{legend(chart)}{sparkline((1, 2), 't')}{bars('t', [('a', 1)])}"
    drawn += str(interval(0.5, 0.4, 0.6, (0, 1)))
    assert not re.search(r"\s(style|on\w+|href)=", drawn)


def test_a_chart_tells_itself_in_words() -> None:
    line = Line("reward", (0.1, None, 0.5), is_faint=False)
    chart = Chart("Reward", ("4", "5", "6"), (line,), marks=((1, "rollback"),))
    told = "reward: 0.1 at step 4, 0.5 at step 6; between 0.1 and 0.5. rollback at step 5."
    assert description(chart) == told
    root = parsed(str(line_chart(chart)))
    assert (root.findtext(f"{SVG}title"), root.findtext(f"{SVG}desc")) == ("Reward", told)
    assert root.get("role") == "img"


def test_a_value_between_two_gaps_is_a_dot_and_an_interval_with_a_gap_two_bands() -> None:
    line = Line("r", (1.0, None, 2.0, 3.0), low=(0.5, None, 1.5, 2.5), high=(1.5, None, 2.5, 3.5))
    root = parsed(str(line_chart(chart_of(line))))
    assert len([node for node in root.iter(f"{SVG}circle")]) == 1
    (band,) = [node.get("d", "") for node in root.iter(f"{SVG}path") if node.get("class") == "band f1"]
    assert band.count("Z") == 2


def test_a_place_tells_its_numbers_unless_there_are_too_many() -> None:
    few = str(line_chart(chart_of(Line("r", (0.25, 0.5)), is_percent=True)))
    assert "<title>step 1: r 50 %</title>" in few
    assert 'class="hit"' not in str(line_chart(chart_of(Line("r", tuple(float(n) for n in range(500))))))


@given(st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=30), st.integers(1, 10))
def test_an_average_stays_between_what_it_is_of(values: list[float | None], span: int) -> None:
    made = averaged(values, span)
    assert len(made) == len(values)
    for place, mean in enumerate(made):
        near = [value for value in values[max(0, place - span + 1) : place + 1] if value is not None]
        assert (mean is None) == (not near)
        assert mean is None or min(near) - 1e-9 <= mean <= max(near) + 1e-9
