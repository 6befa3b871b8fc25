"""Groups as pages show them: how far each is, what it waits for or why it is not trained, and how its members stand.
Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.dashboard.wording import lasted, words
from tracker.types import EpisodeState, Group, GroupShare, GroupState, Member, RunSettings, SkipReason

FROZEN: Final = frozenset({GroupState.TAKEN, GroupState.TRAINED})
SKIPS: Final = {
    SkipReason.NO_VARIANCE: "all advantages are zero: its members were rewarded alike, so there is nothing to learn",
    SkipReason.ONE_MEMBER: "one member alone counts, and there is nothing to compare it with",
    SkipReason.TOO_FEW_SCORED: "too few of its members were scored before its time was up",
    SkipReason.NO_IDS: "no call of its members can be trained; their pages say why",
    SkipReason.EXPIRED: "it expired: no member ended in time, or its versions became too old before it was taken",
    SkipReason.WITHDRAWN: "a version that played in it was rolled back since",
    SkipReason.REFUSED: "what is stored is not what was sampled; the trainer refused it",
}
WHY: Final = {
    "infra_error": "ended by a failure of the infrastructure, which says nothing of the policy",
    "cancelled": "cancelled",
    "expired": "not done when its round was settled",
    "unscored": "not scored",
    "truncated": "an answer was cut by its limit, and the run drops such episodes",
}


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member with what is said of it."""

    told: Member
    why: str
    share: float
    """How large its advantage is beside the largest of the group, from 0 to 1."""

    @property
    def sign(self) -> str:
        """Of its advantage: `up`, `down` or `none`."""
        advantage = self.told.advantage or 0.0
        return "up" if advantage > 0 else "down" if advantage < 0 else "none"


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group with what is said of it."""

    told: Group
    members: tuple[MemberView, ...]
    shares: tuple[GroupShare, ...]
    is_frozen: bool
    """Its advantages are those that were trained with; else they change with each reward."""
    num_scored: int
    num_ended: int
    mean: float | None
    line: str
    """What it waits for, or why it is not trained."""


def group_view(group: Group, shares: Sequence[GroupShare], run: RunSettings, now_ms: int) -> GroupView:
    """A group; its members stand as they do now where no trainer has taken it."""
    seated = [member for member in group.members if member.member or member.why == "unscored"]
    scored = [member.reward for member in group.members if member.member and member.reward is not None]
    largest = max((abs(member.advantage or 0.0) for member in group.members), default=0.0)
    num_ended = sum(member.state is EpisodeState.ARCHIVED for member in seated)
    return GroupView(
        told=group,
        members=tuple(
            MemberView(
                told=member,
                why=WHY.get(member.why, words(member.why)),
                share=abs(member.advantage or 0.0) / largest if largest else 0.0,
            )
            for member in group.members
        ),
        shares=tuple(shares),
        is_frozen=group.state in FROZEN,
        num_scored=len(scored),
        num_ended=num_ended,
        mean=sum(scored) / len(scored) if scored else None,
        line=_line(group, len(scored), num_ended, run, now_ms),
    )


def _line(group: Group, num_scored: int, num_ended: int, run: RunSettings, now_ms: int) -> str:
    match group.state:
        case GroupState.OPEN:
            left_ms = group.created_ms + run.group_timeout_s * 1000 - now_ms
            until = f"settled in {lasted(left_ms)} at the latest" if left_ms > 0 else "about to be settled"
            return f"waits: {num_scored} of {group.size} scored, {num_ended} ended; {until}"
        case GroupState.READY:
            return f"{num_scored} of {group.size} scored; waits for the trainer"
        case GroupState.TAKEN:
            return "in the step that is being trained"
        case GroupState.TRAINED:
            return f"trained, {num_scored} of {group.size} scored"
        case GroupState.SKIPPED:
            return "not trained: " + (SKIPS[group.reason] if group.reason is not None else "no reason was given")
