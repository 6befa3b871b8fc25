"""The calls of an episode folded into token trees, one per policy.

A call extends a branch of its policy only if the branch's ids, sampled ones included, are a prefix of its prompt ids;
otherwise it starts a new branch. Ids decide, never text, and never the order in which parallel calls finished: ties go
by the order in which calls began. Nothing is repaired, joined or invented. Equal samples stay two nodes. Calls whose
role is context stand in the tree like the others and are not trained; dropped ones are not in it.

Work is near linear in the tokens. Ids are packed at a fixed width and sorted, so that everything a sequence begins with
stands before it and a stack finds its longest prefix; no pair of calls is compared twice. What the loss sees is
in `samples.py`; why a choice is left out, in `exclusion.py`.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence

from tracker.exclusion import ChoiceKey, context_choices, exclusions, in_order
from tracker.types import Call, Choice, Reason, Record, RunSettings

__all__ = ["ChoiceKey", "Node", "Timeline", "Tree", "exclusions", "fold", "grow", "included", "num_distinct_tokens"]

_ID_BYTES = 8


class Node(Record, frozen=True):
    """One choice of one call in the tree of its policy."""

    call_id: str
    choice: int
    index: int
    """Order in which its call began."""
    parent: ChoiceKey | None
    """The longest node whose prompt and sampled ids together begin this one's prompt; `None` at a root."""
    num_prompt: int
    num_sampled: int
    trained: bool = True
    """False where the role of its call is context."""

    @property
    def key(self) -> ChoiceKey:
        """(call_id, choice)."""
        return self.call_id, self.choice


class Tree(Record, frozen=True):
    """All nodes of one policy, in the order their calls began."""

    policy: str
    nodes: tuple[Node, ...]


class Timeline(Record, frozen=True):
    """An episode, folded."""

    trees: tuple[Tree, ...]
    """By policy name."""
    parents: dict[str, str | None]
    """call_id -> the call it continues, for every call; one that is excluded is nobody's parent."""
    branches: tuple[tuple[ChoiceKey, ...], ...]
    """Paths from root to leaf, in the order their calls began."""
    excluded: dict[ChoiceKey, Reason]


def fold(calls: Iterable[Call], run: RunSettings) -> Timeline:
    """Fold calls into trees. The order of `calls` has no influence; `call.index` has.

    >>> first = Call(call_id="a", episode_id="e", index=0, policy="p", prompt_ids=(1, 2),
    ...              choices=(Choice(index=0, sampled_ids=(3,), logprobs=(-0.5,)),))
    >>> second = Call(call_id="b", episode_id="e", index=1, policy="p", prompt_ids=(1, 2, 3, 4),
    ...               choices=(Choice(index=0, sampled_ids=(5,), logprobs=(-0.5,)),))
    >>> fold([second, first], RunSettings(run="r")).branches
    ((('a', 0), ('b', 0)),)
    """
    ordered = in_order(calls)
    excluded = exclusions(ordered, run)
    return grow(ordered, excluded, context_choices(ordered, run, excluded))


Prefixes = Callable[[Sequence[Call], dict[ChoiceKey, Reason]], dict[str, list[ChoiceKey]]]
"""For each call of one policy, the choices with the longest ids that its prompt begins with."""


def grow(
    calls: Iterable[Call],
    excluded: dict[ChoiceKey, Reason],
    context: Collection[ChoiceKey] = frozenset(),
    prefixes: Prefixes | None = None,
) -> Timeline:
    """`fold` with the exclusions given: choices that are not in `excluded`, or in `context`, become nodes. `prefixes`
    is for whoever finds them without the ids (`outline.py`)."""
    ordered = in_order(calls)
    outside = {key: reason for key, reason in excluded.items() if key not in context}
    by_policy: defaultdict[str, list[Call]] = defaultdict(list)
    for call in ordered:
        if call.policy is not None:
            by_policy[call.policy].append(call)
    parents: dict[str, str | None] = {call.call_id: None for call in ordered}
    trees: list[Tree] = []
    for policy in sorted(by_policy):
        found = (prefixes or _longest_prefixes)(by_policy[policy], outside)
        chosen = _choose_parents(by_policy[policy], outside, found)
        parents |= {call_id: parent[0] if parent else None for call_id, parent in chosen.items()}
        nodes = tuple(
            _node(call, choice, chosen[call.call_id], trained=(call.call_id, choice.index) not in excluded)
            for call, choice in included(by_policy[policy], outside)
        )
        if nodes:
            trees.append(Tree(policy=policy, nodes=nodes))
    return Timeline(trees=tuple(trees), parents=parents, branches=_branches(trees), excluded=excluded)


def included(calls: Iterable[Call], excluded: dict[ChoiceKey, Reason]) -> list[tuple[Call, Choice]]:
    """Every trained choice with its call, in the order of `calls`."""
    return [(call, choice) for call in calls for choice in call.choices if (call.call_id, choice.index) not in excluded]


def num_distinct_tokens(sequences: Iterable[Sequence[int]]) -> int:
    """Nodes of the prefix trie over the sequences: what one forward pass over all of them has to compute.

    >>> num_distinct_tokens([(1, 2, 3), (1, 2, 4), (1, 2)])
    4
    """
    total, previous = 0, b""
    for packed in sorted(_packed(ids) for ids in sequences):
        total += (len(packed) - _common_bytes(previous, packed)) // _ID_BYTES
        previous = packed
    return total


def _node(call: Call, choice: Choice, parent: ChoiceKey | None, *, trained: bool) -> Node:
    return Node(
        call_id=call.call_id,
        choice=choice.index,
        index=call.index,
        parent=parent,
        num_prompt=len(call.prompt_ids),
        num_sampled=len(choice.sampled_ids),
        trained=trained,
    )


def _choose_parents(
    ordered: Sequence[Call], excluded: dict[ChoiceKey, Reason], candidates: dict[str, list[ChoiceKey]]
) -> dict[str, ChoiceKey | None]:
    """The parent of every call of one policy.

    Where several nodes hold the very same ids, a call takes the oldest that began before it and that no other call
    continued yet, so that equal lines of parallel agents each stay whole; else the oldest of all.
    """
    began = {call.call_id: position for position, call in enumerate(ordered)}
    trained = {call.call_id for call, _ in included(ordered, excluded)}
    continued: set[ChoiceKey] = set()
    chosen: dict[str, ChoiceKey | None] = {}
    for call in ordered:
        equal = candidates[call.call_id]
        if not equal:
            chosen[call.call_id] = None
            continue
        own = began[call.call_id]
        parent = next((key for key in equal if began[key[0]] < own and key not in continued), equal[0])
        chosen[call.call_id] = parent
        if call.call_id in trained:
            continued.add(parent)
    return chosen


def _longest_prefixes(ordered: Sequence[Call], excluded: dict[ChoiceKey, Reason]) -> dict[str, list[ChoiceKey]]:
    """For each call, the nodes with the longest ids that its prompt begins with (equal ones together, oldest first)."""
    nodes: defaultdict[bytes, list[ChoiceKey]] = defaultdict(list)
    prompts: defaultdict[bytes, list[str]] = defaultdict(list)
    packed = {call.call_id: _packed(call.prompt_ids) for call in ordered}
    for call, choice in included(ordered, excluded):
        nodes[packed[call.call_id] + _packed(choice.sampled_ids)].append((call.call_id, choice.index))
    for call in ordered:
        prompts[packed[call.call_id]].append(call.call_id)
    longest: dict[str, list[ChoiceKey]] = {}
    open_prefixes: list[bytes] = []
    for sequence in sorted(nodes.keys() | prompts.keys()):
        while open_prefixes and not sequence.startswith(open_prefixes[-1]):
            open_prefixes.pop()
        if sequence in nodes:
            open_prefixes.append(sequence)
        for call_id in prompts.get(sequence, ()):
            longest[call_id] = nodes[open_prefixes[-1]] if open_prefixes else []
    return longest


def _branches(trees: Iterable[Tree]) -> tuple[tuple[ChoiceKey, ...], ...]:
    """Every path from root to leaf, depth first by the order in which calls began."""
    paths: list[list[Node]] = []
    for tree in trees:
        nodes = {node.key: node for node in tree.nodes}
        inner = {node.parent for node in tree.nodes}
        paths += [_path(node, nodes) for node in tree.nodes if node.key not in inner]
    paths.sort(key=lambda path: [(node.index, node.call_id, node.choice) for node in path])
    return tuple(tuple(node.key for node in path) for path in paths)


def _path(leaf: Node, nodes: dict[ChoiceKey, Node]) -> list[Node]:
    path = [leaf]
    while (parent := path[-1].parent) is not None:
        path.append(nodes[parent])
    path.reverse()
    return path


def _packed(ids: Sequence[int]) -> bytes:
    """Ids at a fixed width: one sequence begins another exactly if its bytes do."""
    return struct.pack(f">{len(ids)}q", *ids)


def _common_bytes(left: bytes, right: bytes) -> int:
    """Length of the common prefix rounded down to whole ids, by bisection over fast comparisons."""
    low, high = 0, min(len(left), len(right)) // _ID_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if left[: middle * _ID_BYTES] == right[: middle * _ID_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low * _ID_BYTES
