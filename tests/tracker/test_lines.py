"""What a version carries: its epoch up to its step, and back over rollbacks what was gone back to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tracker.lines import EpisodeLineage, StepTaken, carries, line_of, lineage_line


def step(epoch: int, number: int, version: int | None = None) -> StepTaken:
    return StepTaken(epoch=epoch, step=number, version=version)


def test_a_version_carries_all_steps_of_its_epoch_up_to_its_own():
    steps = [step(0, 1, 1), step(0, 2), step(0, 3, 2), step(0, 4, 3)]
    line = line_of(2, steps, {1: 0, 2: 0, 3: 0}, {})
    assert [carries(line, 0, number) for number in (1, 2, 3, 4)] == [True, True, True, False]


def test_what_a_rollback_withdrew_is_not_carried_by_what_came_after():
    steps = [step(0, 1, 1), step(0, 2, 2), step(1, 3, 3), step(2, 4, 4)]
    epochs, roots = {1: 0, 2: 0, 3: 1, 4: 2}, {1: 1, 2: 3}
    after = line_of(4, steps, epochs, roots)
    assert [carries(after, *place) for place in ((0, 1), (0, 2), (1, 3), (2, 4))] == [True, False, True, True]
    assert carries(line_of(2, steps, epochs, roots), 0, 2)


def test_a_rollback_to_the_base_model_carries_nothing_of_before():
    line = line_of(2, [step(0, 1, 1), step(1, 2, 2)], {1: 0, 2: 1}, {1: 0})
    assert not carries(line, 0, 1)


def test_a_version_that_was_published_by_hand_carries_what_the_one_before_it_did():
    steps = [step(0, 1, 1), step(0, 2, 3)]
    line = line_of(2, steps, {1: 0, 2: 0, 3: 0}, {})
    assert (carries(line, 0, 1), carries(line, 0, 2)) == (True, False)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.data())
def test_each_version_carries_its_own_step_and_every_line_leads_down(rises: list[int], data: st.DataObject):
    """However often a policy was rolled back; a version that was gone back to is carried whole."""
    epochs: dict[int, int] = {}
    roots: dict[int, int] = {}
    epoch = 0
    for version, rise in enumerate(rises, start=1):
        if rise == 0 and version > 1:
            epoch += 1
            roots[epoch] = data.draw(st.integers(0, version - 1))
        epochs[version] = epoch
    steps = [step(epochs[version], version, version) for version in epochs]
    for version in epochs:
        line = line_of(version, steps, epochs, roots)
        assert carries(line, epochs[version], version)
        root = roots.get(epochs[version], 0)
        below = line_of(root, steps, epochs, roots) if root else {}
        for other in epochs:
            same = epochs[other] == epochs[version] and other <= version
            assert carries(line, epochs[other], other) == (same or carries(below, epochs[other], other))


def test_a_line_for_people_tells_versions_and_what_is_still_to_come():
    lineage = EpisodeLineage(
        episode_id="e", is_deleted=False, group_id=None, group_state=None, reason=None, batches=(), versions={}
    )
    assert lineage_line(lineage) == "e: no version was trained on it"
