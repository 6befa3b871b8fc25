"""What each call of an episode is worth, along the tree of its calls.

Returns are worked out before anything is left out: a call the agent was answered with is in the tree, and its reward
reaches the calls above it, also where the call itself cannot be trained. Attempts that came to nothing are not, nor are
calls of a role that the run drops.

A call's own return is `G_k = Σ_{j≥k} γ^(j−k) r_j` over the calls from it to a leaf, the mean over the leaves below it;
the discount of the episode's reward is `γ^(K−k)`, likewise. With roles taken as policies, after M-GRPO
(arXiv 2511.13288), the unit is the invocation: the part of the tree that one role spans from its root down.
Comparing returns is left to `credit.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from tracker.exclusion import DROP, exclusions, in_order, role_rule
from tracker.timeline import grow, included
from tracker.types import Call, Reason, Record, RunSettings

_OUTSIDE_TREE: Final = (
    Reason.NO_IDS,
    Reason.NO_PROMPT_IDS,
    Reason.UPSTREAM_FAILED,
    Reason.CONTEXT_LIMIT,
    Reason.CLIENT_GONE,
    Reason.SUPERSEDED,
    Reason.AMBIGUOUS_RETRY,
    Reason.LOST,
    Reason.UNRECORDED,
    Reason.REMOVED,
)
"""Without ids, or without an answer that the agent used."""


class CallReturn(Record, frozen=True):
    """One call in the tree of its episode."""

    call_id: str
    depth: int
    """Calls above it."""
    own: float
    """G_k of call rewards."""
    discount: float
    """What the episode's reward is multiplied by here; 1 at a leaf."""
    policy: str
    role: str
    invocation: str
    """call_id of the root of its invocation."""
    trained: bool
    """Whether it gets a row; the others only pass rewards on."""


class Invocation(Record, frozen=True):
    """What one role did from its root down: its calls, and the sum of their rewards."""

    root: str
    policy: str
    role: str
    call_ids: tuple[str, ...]
    """Trained calls only."""
    own: float
    weight: float
    """1 / the number of invocations of the role in the episode, those of the same policy."""

    @property
    def part(self) -> tuple[str, str]:
        """What it is compared with: the same role of the same policy. A role may be played by several policies."""
        return self.policy, self.role


def call_returns(
    calls: Sequence[Call], run: RunSettings, rewards: Mapping[str, float], gamma: float
) -> tuple[CallReturn, ...]:
    """Returns of all calls in the tree, parents before their children."""
    ordered = in_order(calls)
    excluded = exclusions(ordered, run)
    dropped = {call.call_id for call in ordered if role_rule(run, call.role) == DROP or call.reason is Reason.REDACTED}
    outside = {key: reason for key, reason in excluded.items() if reason in _OUTSIDE_TREE or key[0] in dropped}
    timeline = grow(ordered, outside)
    in_tree = {call.call_id: call for call, _ in included(ordered, outside) if call.policy is not None}
    trained = {call.call_id for call, _ in included(ordered, excluded)}
    # A parent's ids begin its child's prompt, so a shorter prompt always comes first on a path.
    downwards = sorted(in_tree.values(), key=lambda call: (len(call.prompt_ids), call.index, call.call_id))
    depths: dict[str, int] = {}
    invocations: dict[str, str] = {}
    for call in downwards:
        parent = timeline.parents[call.call_id]
        depths[call.call_id] = 0 if parent is None else depths[parent] + 1
        same_role = parent is not None and role_of(in_tree[parent]) == role_of(call)
        invocations[call.call_id] = invocations[parent] if parent is not None and same_role else call.call_id
    own, discounts = _discounted(downwards, timeline.parents, rewards, gamma)
    return tuple(
        CallReturn(
            call_id=call.call_id,
            depth=depths[call.call_id],
            own=own[call.call_id],
            discount=discounts[call.call_id],
            policy=call.policy or "",
            role=role_of(call),
            invocation=invocations[call.call_id],
            trained=call.call_id in trained,
        )
        for call in downwards
    )


def invocations_of(returns: Sequence[CallReturn], rewards: Mapping[str, float]) -> tuple[Invocation, ...]:
    """Group the calls of an episode by invocation; each call is in exactly one."""
    calls: dict[str, list[CallReturn]] = {}
    parts: dict[str, tuple[str, str]] = {}
    for item in returns:
        calls.setdefault(item.invocation, []).append(item)
        parts[item.invocation] = item.policy, item.role
    numbers = Counter(parts.values())
    return tuple(
        Invocation(
            root=root,
            policy=parts[root][0],
            role=parts[root][1],
            call_ids=tuple(item.call_id for item in members if item.trained),
            own=math.fsum(rewards.get(item.call_id, 0.0) for item in members),
            weight=1.0 / numbers[parts[root]],
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
