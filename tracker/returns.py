"""What each call of an episode is worth, along the tree of its calls. Only trained calls are in the tree.

A call's own return is `G_k = Σ_{j≥k} γ^(j−k) r_j` over the calls from it to a leaf, the mean over the leaves below it;
the discount of the episode's reward is `γ^(K−k)`, likewise. With roles taken as policies, after M-GRPO
(arXiv 2511.13288), the unit is the invocation: the part of the tree that one role spans from its root down.
Comparing returns is left to `credit.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tracker.timeline import fold, included
from tracker.types import Call, Record, RunSettings


class CallReturn(Record, frozen=True):
    """One trained call in the tree of its episode."""

    call_id: str
    depth: int
    """Calls above it."""
    own: float
    """G_k of call rewards."""
    discount: float
    """What the episode's reward is multiplied by here; 1 at a leaf."""
    role: str
    invocation: str
    """call_id of the root of its invocation."""


class Invocation(Record, frozen=True):
    """One run of a role: its calls, and the sum of their rewards."""

    root: str
    role: str
    call_ids: tuple[str, ...]
    own: float
    weight: float
    """1 / the number of invocations of the role in the episode."""


def call_returns(
    calls: Sequence[Call], run: RunSettings, rewards: Mapping[str, float], gamma: float
) -> tuple[CallReturn, ...]:
    """Returns of all trained calls, parents before their children."""
    timeline = fold(calls, run)
    trained = {call.call_id: call for call, _ in included(calls, timeline.excluded)}
    # A parent's ids begin its child's prompt, so a shorter prompt always comes first on a path.
    downwards = sorted(trained.values(), key=lambda call: (len(call.prompt_ids), call.index, call.call_id))
    depths: dict[str, int] = {}
    invocations: dict[str, str] = {}
    for call in downwards:
        parent = timeline.parents[call.call_id]
        depths[call.call_id] = 0 if parent is None else depths[parent] + 1
        same_role = parent is not None and role_of(trained[parent]) == role_of(call)
        invocations[call.call_id] = invocations[parent] if parent is not None and same_role else call.call_id
    own, discounts = _discounted(downwards, timeline.parents, rewards, gamma)
    return tuple(
        CallReturn(
            call_id=call.call_id,
            depth=depths[call.call_id],
            own=own[call.call_id],
            discount=discounts[call.call_id],
            role=role_of(call),
            invocation=invocations[call.call_id],
        )
        for call in downwards
    )


def invocations_of(returns: Sequence[CallReturn], rewards: Mapping[str, float]) -> tuple[Invocation, ...]:
    """Group the calls of an episode by invocation; each call is in exactly one."""
    calls: dict[str, list[str]] = {}
    roles: dict[str, str] = {}
    for item in returns:
        calls.setdefault(item.invocation, []).append(item.call_id)
        roles[item.invocation] = item.role
    numbers = Counter(roles.values())
    return tuple(
        Invocation(
            root=root,
            role=roles[root],
            call_ids=tuple(members),
            own=sum(rewards.get(call_id, 0.0) for call_id in members),
            weight=1.0 / numbers[roles[root]],
        )
        for root, members in calls.items()
    )


def role_of(call: Call) -> str:
    """The role credit knows a call by: its own where it was given one, else the policy's name."""
    return call.role if call.role != "main" or call.policy is None else call.policy


def _discounted(
    downwards: Sequence[Call], parents: Mapping[str, str | None], rewards: Mapping[str, float], gamma: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Sums over leaves, from the leaves up, divided by the number of leaves below: each leaf counts the same."""
    leaves: dict[str, int] = {}
    sums: dict[str, float] = {}
    powers: dict[str, float] = {}
    for call in reversed(downwards):
        key, parent = call.call_id, parents[call.call_id]
        num_leaves = leaves.setdefault(key, 1)
        powers.setdefault(key, 1.0)
        sums[key] = sums.get(key, 0.0) + num_leaves * rewards.get(key, 0.0)
        if parent is not None:
            leaves[parent] = leaves.get(parent, 0) + num_leaves
            sums[parent] = sums.get(parent, 0.0) + gamma * sums[key]
            powers[parent] = powers.get(parent, 0.0) + gamma * powers[key]
    return {key: sums[key] / leaves[key] for key in sums}, {key: powers[key] / leaves[key] for key in powers}
