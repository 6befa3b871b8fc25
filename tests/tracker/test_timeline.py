"""The laws of the timeline: parents by ids alone, whatever order calls finished or are read in."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.tracker.building import RUN, call, episodes
from tracker.timeline import fold, included, num_distinct_tokens
from tracker.types import Call, CallState, Reason, RunSettings


def test_a_call_extends_the_longest_branch_that_begins_its_prompt():
    calls = [call("a", 0, [1], [2]), call("b", 1, [1, 2, 3], [4]), call("c", 2, [1, 2, 3, 4, 5], [6])]
    assert fold(calls, RUN).parents == {"a": None, "b": "a", "c": "b"}


def test_a_rewritten_history_starts_a_new_branch():
    calls = [call("a", 0, [1], [2, 3]), call("b", 1, [1, 2, 9], [4])]
    timeline = fold(calls, RUN)
    assert timeline.parents == {"a": None, "b": None}
    assert timeline.branches == ((("a", 0),), (("b", 0),))


def test_a_prompt_equal_to_a_branch_extends_it():
    assert fold([call("a", 0, [1], [2]), call("b", 1, [1, 2], [3])], RUN).parents == {"a": None, "b": "a"}


def test_two_policies_never_share_a_branch():
    calls = [call("a", 0, [1], [2]), call("b", 1, [1, 2, 3], [4], policy="q")]
    timeline = fold(calls, RUN)
    assert timeline.parents == {"a": None, "b": None}
    assert [tree.policy for tree in timeline.trees] == ["p", "q"]


def test_a_fork_gives_two_branches_with_a_common_beginning():
    calls = [call("a", 0, [1], [2]), call("b", 1, [1, 2, 3], [4]), call("c", 2, [1, 2, 5], [6])]
    assert fold(calls, RUN).branches == ((("a", 0), ("b", 0)), (("a", 0), ("c", 0)))


def test_equal_samples_stay_two_leaves():
    calls = [call("a", 0, [1], [2], [2]), call("b", 1, [1], [2])]
    assert fold(calls, RUN).branches == ((("a", 0),), (("a", 1),), (("b", 0),))


def test_equal_lines_of_two_agents_each_stay_whole():
    calls = [
        call("a1", 0, [1], [2]),
        call("b1", 1, [1], [2]),
        call("a2", 2, [1, 2, 3], [4]),
        call("b2", 3, [1, 2, 3], [4]),
    ]
    assert fold(calls, RUN).branches == ((("a1", 0), ("a2", 0)), (("b1", 0), ("b2", 0)))


def test_a_call_never_takes_a_later_call_for_its_parent_where_an_equal_earlier_one_exists():
    calls = [
        call("a", 0, [1], [2]),
        call("b", 1, [1, 2, 3], [4]),
        call("c", 2, [1, 2, 5], [6]),
        call("late", 3, [1], [2]),
    ]
    assert fold(calls, RUN).parents == {"a": None, "b": "a", "c": "a", "late": None}


def test_an_excluded_call_does_not_use_up_the_line_it_would_have_continued():
    calls = [
        call("a", 0, [1], [2]),
        call("b", 1, [1], [2]),
        call("gone", 2, [1, 2, 3], [4], state=CallState.ABORTED),
        call("d", 3, [1, 2, 3], [4]),
    ]
    assert fold(calls, RUN).parents["d"] == "a"


def test_an_excluded_call_is_shown_under_its_parent_and_is_nobody_s():
    calls = [
        call("a", 0, [1], [2]),
        call("b", 1, [1, 2, 3], [4], reason=Reason.IMAGES),
        call("c", 2, [1, 2, 3, 4, 5], [6]),
    ]
    timeline = fold(calls, RUN)
    assert timeline.parents == {"a": None, "b": "a", "c": "a"}
    assert timeline.excluded == {("b", 0): Reason.IMAGES}


@given(st.data(), episodes())
def test_the_timeline_does_not_depend_on_the_order_calls_finish_or_are_read_in(data: st.DataObject, calls: list[Call]):
    times = data.draw(st.lists(st.integers(0, 9), min_size=len(calls), max_size=len(calls)))
    finished = [msgspec.structs.replace(made, ended_ms=at) for made, at in zip(calls, times, strict=True)]
    assert fold(data.draw(st.permutations(finished)), RUN) == fold(calls, RUN)


@given(st.data(), episodes(amiss=False))
def test_which_ids_continue_which_does_not_depend_on_the_order_calls_begin_in(data: st.DataObject, calls: list[Call]):
    def continued(listed: list[Call]) -> dict[str, tuple[int, ...] | None]:
        full = {(made.call_id, one.index): made.prompt_ids + one.sampled_ids for made, one in included(listed, {})}
        nodes = [node for tree in fold(listed, RUN).trees for node in tree.nodes]
        return {node.call_id: full[node.parent] if node.parent else None for node in nodes}

    order = data.draw(st.permutations(range(len(calls))))
    begun = [msgspec.structs.replace(made, index=index) for made, index in zip(calls, order, strict=True)]
    assert continued(begun) == continued(calls)


@given(episodes())
def test_a_parent_is_the_longest_trained_sequence_that_begins_the_prompt(calls: list[Call]):
    timeline = fold(calls, RUN)
    trained = [(made, item) for made, item in included(calls, timeline.excluded) if made.policy is not None]
    for made in calls:
        begins = [
            (other.call_id, len(full))
            for other, item in trained
            if made.policy == other.policy
            and made.prompt_ids[: len(full := other.prompt_ids + item.sampled_ids)] == full
        ]
        longest = max((length for _, length in begins), default=0)
        parent = timeline.parents[made.call_id]
        assert parent in {name for name, length in begins if length == longest} if begins else parent is None


@given(episodes())
def test_every_trained_choice_is_one_node_and_every_branch_a_path_from_root_to_leaf(calls: list[Call]):
    timeline = fold(calls, RUN)
    nodes = {node.key: node for tree in timeline.trees for node in tree.nodes}
    assert sorted(nodes) == sorted((made.call_id, one.index) for made, one in included(calls, timeline.excluded))
    leaves = nodes.keys() - {node.parent for node in nodes.values()}
    assert sorted(branch[-1] for branch in timeline.branches) == sorted(leaves)
    for branch in timeline.branches:
        assert [nodes[key].parent for key in branch] == [None, *branch[:-1]]


@given(st.lists(st.lists(st.integers(0, 2), max_size=5)))
def test_distinct_tokens_are_the_nodes_of_the_prefix_trie(sequences: list[list[int]]):
    prefixes = {tuple(ids[: end + 1]) for ids in sequences for end in range(len(ids))}
    assert num_distinct_tokens(sequences) == len(prefixes)


CONTEXT = RunSettings(run="r", roles={"judge": "context"})
DROP = RunSettings(run="r", roles={"judge": "drop"})


def test_a_call_of_a_context_role_stands_in_the_tree_and_is_not_trained():
    calls = [
        call("a", 0, [1], [2]),
        call("b", 1, [1, 2, 3], [4], role="judge"),
        call("c", 2, [1, 2, 3, 4, 5], [6]),
    ]
    timeline = fold(calls, CONTEXT)
    assert timeline.parents == {"a": None, "b": "a", "c": "b"}
    assert timeline.branches == ((("a", 0), ("b", 0), ("c", 0)),)
    assert [node.trained for tree in timeline.trees for node in tree.nodes] == [True, False, True]
    assert timeline.excluded == {("b", 0): Reason.ROLE}


def test_a_call_of_a_dropped_role_is_not_in_the_tree():
    calls = [call("a", 0, [1], [2]), call("b", 1, [1, 2, 3], [4], role="judge"), call("c", 2, [1, 2, 3, 4, 5], [6])]
    timeline = fold(calls, DROP)
    assert timeline.parents == {"a": None, "b": "a", "c": "a"}
    assert timeline.branches == ((("a", 0), ("c", 0)),)


def test_titles_are_dropped_unless_the_run_names_them():
    calls = [call("a", 0, [1], [2], role="title")]
    assert fold(calls, RUN).trees == ()
    assert fold(calls, RunSettings(run="r", roles={"title": "train"})).excluded == {}


@given(episodes())
def test_dropping_a_role_is_as_if_it_had_never_called(calls: list[Call]):
    timeline = fold(calls, DROP)
    without = fold([made for made in calls if made.role != "judge"], DROP)
    assert (timeline.trees, timeline.branches) == (without.trees, without.branches)


@given(episodes())
def test_context_adds_to_the_tree_only_what_is_sound_and_not_trained(calls: list[Call]):
    whole, dropped = fold(calls, CONTEXT), fold(calls, DROP)
    nodes = [node for tree in whole.trees for node in tree.nodes]
    trained = {node.key for tree in dropped.trees for node in tree.nodes}
    roles = {made.call_id: made.role for made in calls}
    assert {node.key for node in nodes if node.trained} == trained
    assert all(roles[node.call_id] == "judge" for node in nodes if not node.trained)
    assert whole.excluded == dropped.excluded
