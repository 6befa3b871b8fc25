"""The tree of an episode's calls as lanes beside a list of them: a lane a branch, a dot a call, a bend where one leaves
another. Pure: SVG without text; the column beside it says the same in words.

Each row is drawn by itself and stretched to the height of its row, so dots are round ends of lines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from tracker.timeline import Timeline
from tracker.types import Call

MAX_LANES: Final = 8
"""Further branches share the last lane."""
STEP: Final = 14
HEIGHT: Final = 32
MIDDLE: Final = HEIGHT // 2


def num_lanes(timeline: Timeline) -> int:
    return max(1, min(len(timeline.branches), MAX_LANES))


def lanes_of(calls: Sequence[Call], timeline: Timeline, start: int, end: int) -> list[Markup]:
    """What stands beside the calls from `start` to before `end`, in the order they began."""
    lanes = _lanes(calls, timeline)
    places = {call.call_id: place for place, call in enumerate(calls)}
    lines: defaultdict[int, list[str]] = defaultdict(list)
    for call in calls:
        parent, place = timeline.parents.get(call.call_id), places[call.call_id]
        above = places.get(parent or "", place)
        if above < place:
            _draw(lines, (above, place), (lanes[parent or ""], lanes[call.call_id]), (start, end))
    trained = {call_id for tree in timeline.trees for call_id in (node.call_id for node in tree.nodes if node.trained)}
    width = STEP * num_lanes(timeline)
    return [
        _row(lines[place], lanes[call.call_id], call.call_id in trained, width)
        for place, call in enumerate(calls[start:end], start)
    ]


def _lanes(calls: Sequence[Call], timeline: Timeline) -> dict[str, int]:
    """call_id -> the lane of the first branch that it is in; one that is in none stands beside what it went on from."""
    lanes: dict[str, int] = {}
    for number, branch in enumerate(timeline.branches):
        for call_id, _ in branch:
            lanes.setdefault(call_id, min(number, MAX_LANES - 1))
    for call in calls:
        lanes.setdefault(call.call_id, lanes.get(timeline.parents.get(call.call_id) or "", 0))
    return lanes


def _draw(
    lines: defaultdict[int, list[str]], rows: tuple[int, int], lanes: tuple[int, int], window: tuple[int, int]
) -> None:
    """The way from a call down to one that goes on from it, as far as it is in the window."""
    (above, below), (old, new) = rows, lanes
    x, y = _x(old), _x(new)
    if window[0] <= above < window[1]:
        bend = f"V{HEIGHT}" if old == new else f"C{x} {HEIGHT} {y} {MIDDLE} {y} {HEIGHT}"
        lines[above].append(f"M{x} {MIDDLE}{bend}")
    for row in range(max(above + 1, window[0]), min(below, window[1])):
        lines[row].append(f"M{y} 0V{HEIGHT}")
    if window[0] <= below < window[1]:
        lines[below].append(f"M{y} 0V{MIDDLE}")


def _row(lines: Sequence[str], lane: int, is_trained: bool, width: int) -> Markup:
    x = _x(lane)
    hollow = "" if is_trained else f'<path class="lane-hole" d="M{x} {MIDDLE}h0"/>'
    return Markup(  # noqa: S704 - numbers of our own
        f'<svg class="lanes" width="{width}" viewBox="0 0 {width} {HEIGHT}" preserveAspectRatio="none" '
        f'aria-hidden="true"><path class="lane-line" d="{"".join(dict.fromkeys(lines))}"/>'
        f'<path class="lane-dot" d="M{x} {MIDDLE}h0"/>{hollow}</svg>'
    )


def _x(lane: int) -> int:
    return STEP * lane + STEP // 2
