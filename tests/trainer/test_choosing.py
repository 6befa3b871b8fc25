"""Which groups make the next step: in order of completion, and where there are families in their proportions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tracker.families import family_of, next_families
from tracker.types import Group, RunSettings
from trainer.choosing import choose, families_taken

MIX = RunSettings(run="mix", groups_per_step=3, families={"maths": 2, "code": 1})
sizes = st.integers(1, 5)
tasks = st.lists(st.sampled_from(["maths/a", "maths/b", "code/a", "maths/hard/a"]), max_size=40)


def ready(*names: str) -> list[Group]:
    """Groups of these tasks, in the order in which they became ready."""
    return [
        Group(group_id=f"g{place}", tenant="default", run="mix", task=name, round=place, size=2)
        for place, name in enumerate(names)
    ]


def chosen_tasks(groups: Sequence[Group], run: RunSettings, taken: dict[str, int]) -> list[str]:
    by_id = {group.group_id: group.task for group in groups}
    return [by_id[group_id] for group_id in choose(groups, run, taken).group_ids]


def test_without_families_the_oldest_groups_are_taken():
    run = RunSettings(run="mix", groups_per_step=2)
    assert choose(ready("a", "b", "c"), run, {}).group_ids == ("g0", "g1")
    assert choose(ready("a"), run, {}).waits == "1 of 2 groups ready in run mix"


def test_a_step_holds_its_families_and_keeps_the_order_of_completion():
    groups = ready("maths/1", "maths/2", "maths/3", "code/1", "code/2")
    assert choose(groups, MIX, {}).group_ids == ("g0", "g1", "g3")


def test_a_family_that_is_short_is_waited_for_and_named():
    choice = choose(ready("maths/1", *["code/1"] * 9), MIX, {})
    assert (choice.group_ids, choice.waits) == ((), "1 of 2 groups of family maths ready in run mix")
    assert choose([], MIX, {}).waits == (
        "0 of 2 groups of family maths ready and 0 of 1 groups of family code ready in run mix"
    )


def test_what_one_step_owes_the_next_one_pays():
    run = msgspec.structs.replace(MIX, groups_per_step=1)
    taken: Counter[str] = Counter()
    order: list[str] = []
    for _ in range(6):
        (task,) = chosen_tasks(ready("code/1", "maths/1"), run, dict(taken))
        taken[task] += 1
        order.append(task.split("/")[0])
    assert Counter(order) == {"maths": 4, "code": 2}
    assert Counter(order[:3]) == Counter(order[3:]) == {"maths": 2, "code": 1}


@given(tasks, sizes, st.dictionaries(st.sampled_from(["maths/a", "code/a"]), st.integers(0, 9)))
def test_a_step_is_whole_and_in_order_or_it_waits_for_a_family_that_is_short(
    names: list[str], size: int, taken: dict[str, int]
):
    run = msgspec.structs.replace(MIX, groups_per_step=size)
    groups = ready(*names)
    choice = choose(groups, run, taken)
    wanted = next_families(run.families, families_taken(taken, run), size)
    there = Counter(family_of(name, run.families) for name in names)
    assert bool(choice.group_ids) == all(there[family] >= num for family, num in wanted.items())
    assert bool(choice.group_ids) != bool(choice.waits)
    if choice.group_ids:
        families = [family_of(task, run.families) for task in chosen_tasks(groups, run, taken)]
        assert Counter(families) == {family: num for family, num in wanted.items() if num}
        places = [int(group_id[1:]) for group_id in choice.group_ids]
        assert places == sorted(places)
        for family, num in wanted.items():
            of_family = [place for place, name in enumerate(names) if family_of(name, run.families) == family]
            assert [place for place in places if place in of_family] == of_family[:num]


@given(tasks, st.dictionaries(st.sampled_from(["x", "y/1"]), sizes))
def test_groups_of_a_family_come_out_in_the_order_they_went_in_and_none_is_left_for_ever(
    names: list[str], foreign: dict[str, int]
):
    waiting, taken, order = ready(*names), Counter(foreign), list[str]()
    while choice := choose(waiting, MIX, dict(taken)).group_ids:
        order += choice
        taken.update(group.task for group in waiting if group.group_id in choice)
        waiting = [group for group in waiting if group.group_id not in choice]
    for family in MIX.families:
        of_family = [f"g{place}" for place, name in enumerate(names) if family_of(name, MIX.families) == family]
        came_out = [group_id for group_id in order if group_id in of_family]
        assert came_out == of_family[: len(came_out)]
    there = Counter(family_of(group.task, MIX.families) for group in waiting)
    assert there["maths"] < 2 or there["code"] < 1
