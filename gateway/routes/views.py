"""What reading endpoints show of an episode, a group, a policy and a batch. Pure: records in, JSON values out."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from gateway.answers import plain
from gateway.story import Story
from tracker.errors import Gone
from tracker.manifests import NO_MANIFEST, Manifest
from tracker.removal import EVENT, removed_line
from tracker.samples import Counts, counts, samples_of
from tracker.shares import shares_told
from tracker.timeline import Timeline, fold
from tracker.types import Arm, Batch, Call, EpisodeRow, Group, Policy, Prompting, Version
from tracker.vault import SHREDDED

TOKENS = "tokens"
PAYLOAD = "payload"
"""What is gone of an episode whose tenant's key was shredded: tokens and text."""


def row_view(row: EpisodeRow) -> dict[str, Any]:
    """An episode in a list; what is counted when it is archived is null before."""
    is_archived = row.archived_ms is not None
    return {
        **_head_view(row),
        "state": row.state.value,
        "status": row.status.value if row.status is not None else None,
        "reward": row.reward,
        "versions": row.versions,
        "num_calls": row.num_calls if is_archived else None,
        "num_samples": row.num_samples if is_archived else None,
        "num_excluded": row.num_excluded if is_archived else None,
        "truncated": row.num_truncated > 0 if is_archived else None,
        "num_raw_tokens": row.num_raw_tokens if is_archived else None,
        "num_distinct_tokens": row.num_distinct_tokens if is_archived else None,
        "removed": list(row.removed),
    }


def episode_view(story: Story) -> dict[str, Any]:
    """One episode, counted as it stands; as it was archived where its tokens were removed since."""
    is_whole = TOKENS not in story.row.removed and not story.shredded
    numbers = counts(story.calls, story.run) if is_whole else _archived_counts(story.row)
    return {
        **_head_view(story.row),
        "metadata": plain(story.row.head.metadata),
        "state": story.state.value,
        "status": story.status.value if story.status is not None else None,
        "reward": story.reward(),
        "versions": story.versions,
        "num_calls": numbers.num_calls,
        "num_samples": numbers.num_samples,
        "num_excluded": numbers.num_excluded,
        "num_in_flight": len(story.intents),
        "truncated": numbers.num_truncated > 0,
        "num_truncated": numbers.num_truncated,
        "merge_ratio": numbers.merge_ratio,
        "removed": [*story.row.removed, *([PAYLOAD] if story.shredded else [])],
        "upstreams": _upstreams_view(story),
        "events": plain(story.events),
        "rewards": plain(story.rewards),
    }


def timeline_view(story: Story) -> dict[str, Any]:
    """The trees of an episode and every call in them; raises `Gone` once they were shredded."""
    _refuse_shredded(story)
    timeline = fold(story.calls, story.run)
    return {
        "episode_id": story.row.head.episode_id,
        "removed": list(story.row.removed),
        "trees": [plain(tree) for tree in timeline.trees],
        "branches": [[{"call_id": call_id, "choice": choice} for call_id, choice in b] for b in timeline.branches],
        "calls": [_call_view(call, timeline) for call in story.calls],
        "in_flight": [
            {"call_id": intent.call_id, "policy": intent.policy, "version": intent.version, "role": intent.role}
            for intent in story.intents
        ],
    }


def samples_view(story: Story) -> dict[str, Any]:
    """What of an episode is trained, and what is not; raises `Gone` once its tokens were removed or shredded."""
    _refuse_shredded(story)
    if TOKENS in story.row.removed:
        raise Gone(f"{removal_line(story)}; its samples cannot be told any more.", code="removed")
    samples, excluded = samples_of(story.calls, story.run, story.call_rewards())
    return {
        "episode_id": story.row.head.episode_id,
        "num_calls": len(story.calls),
        "samples": plain(samples),
        "excluded": plain(excluded),
    }


def removal_line(story: Story) -> str:
    """When the tokens of an episode were removed, for people."""
    removals = [event.at_ms for event in story.events if event.kind == EVENT and TOKENS in event.detail]
    return removed_line(removals[0] if removals else None)


def group_view(group: Group) -> dict[str, Any]:
    """A group with its members' standing."""
    return {
        "group_id": group.group_id,
        "run": group.run,
        "task": group.task,
        "round": group.round,
        "size": group.size,
        "state": group.state.value,
        "reason": group.reason.value if group.reason is not None else None,
        "arms": arms_view(group.arms),
        "created_ms": group.created_ms,
        "members": plain(group.members),
    }


def policy_view(policy: Policy, model: str | None, versions: list[Version]) -> dict[str, Any]:
    """A policy with its versions; a probe's points are for engines, not for people."""
    return {
        "policy": policy.policy,
        "model": model,
        "epoch": policy.epoch,
        "active": policy.active,
        "versions": [version_view(version) for version in versions],
    }


def version_view(version: Version) -> dict[str, Any]:
    """One published version."""
    shown = plain(version)
    del shown["probe"]
    return shown


def batch_view(batch: Batch, manifest: Manifest | None, own: Collection[str]) -> dict[str, Any]:
    """A batch and its manifest, null where it is none that can be read. Of the episodes in it only the reader's `own`
    are named, of the others how many trained choices there are; the digest of a manifest is over all of them."""
    checks = shares_told(batch, manifest).view()
    del checks["batches"]
    num_all = 0
    if manifest is not None:
        num_all = len(manifest.spans)
        manifest = msgspec.structs.replace(
            manifest,
            episodes={episode_id: chain for episode_id, chain in manifest.episodes.items() if episode_id in own},
            spans=tuple(span for span in manifest.spans if span.episode_id in own),
        )
    credit = tuple(one for one in batch.credit if one.episode_id in own)
    shown = plain(msgspec.structs.replace(batch, credit=credit, manifest=NO_MANIFEST))
    num_foreign = num_all - (0 if manifest is None else len(manifest.spans))
    return {**shown, "manifest": plain(manifest), "num_foreign": num_foreign, "checks": checks}


def episodes_of_batch(batch: Batch, manifest: Manifest | None) -> set[str]:
    """The episodes that a batch names."""
    return {one.episode_id for one in batch.credit} | set(() if manifest is None else manifest.episodes)


def _refuse_shredded(story: Story) -> None:
    if story.shredded:
        raise Gone(f"{story.shredded}; nothing of its calls can be read any more.", code=SHREDDED)


def _archived_counts(row: EpisodeRow) -> Counts:
    """What was counted when the episode was archived."""
    return Counts(
        num_calls=row.num_calls,
        num_samples=row.num_samples,
        num_excluded=row.num_excluded,
        num_truncated=row.num_truncated,
        num_raw_tokens=row.num_raw_tokens,
        num_distinct_tokens=row.num_distinct_tokens,
    )


def _head_view(row: EpisodeRow) -> dict[str, Any]:
    head = row.head
    return {
        "episode_id": head.episode_id,
        "run": head.run,
        "task": head.task,
        "group_id": head.group_id,
        "policy": head.policy,
        "arms": arms_view(head.arms),
        "created_ms": head.created_ms,
        "ended_ms": row.ended_ms,
    }


def arms_view(arms: Iterable[Arm]) -> dict[str, Any]:
    """policy -> the version that was on trial, and whether it was the one that is got."""
    return {arm.policy: {"version": arm.version, "arm": "canary" if arm.is_canary else "stable"} for arm in arms}


def _upstreams_view(story: Story) -> dict[str, Any]:
    """What the calls to models that are no policy took together; the cost of those that have a price."""
    calls = [call for call in story.calls if call.policy is None]
    used = [call.usage for call in calls if call.usage is not None]
    costs = [usage.cost for usage in used if usage.cost is not None]
    return {
        "num_calls": len(calls),
        "prompt_tokens": sum(usage.prompt_tokens for usage in used),
        "completion_tokens": sum(usage.completion_tokens for usage in used),
        "cost": math.fsum(costs) if costs else None,
    }


def _call_view(call: Call, timeline: Timeline) -> dict[str, Any]:
    """One call; `reason` is the first cause for which a choice of it is left out."""
    reasons = [reason for (call_id, _), reason in timeline.excluded.items() if call_id == call.call_id]
    first = call.choices[0] if call.choices else None
    return {
        "call_id": call.call_id,
        "parent": timeline.parents.get(call.call_id),
        "policy": call.policy,
        "model": call.model,
        "version": call.version,
        "role": call.role,
        "state": call.state.value,
        "reason": reasons[0].value if reasons else None,
        "detail": call.detail,
        "request": _request_view(call),
        "message": plain(first.message) if first is not None else None,
        "sampling": plain(call.sampling),
        "finish_reason": first.finish_reason if first is not None else None,
        "truncated": any(choice.truncated for choice in call.choices),
        "choices": [_choice_view(call, index, timeline) for index in range(len(call.choices))],
        "num_prompt_ids": len(call.prompt_ids),
        "usage": plain(call.usage),
        "prompting": _prompting_view(call.prompting),
        "engine": call.engine,
        "dialect": call.dialect,
        "retry": call.retry,
        "started_ms": call.started_ms,
        "ended_ms": call.ended_ms,
    }


def _prompting_view(prompting: Prompting | None) -> dict[str, Any] | None:
    """How the prompt came about, without the digests that only matching reads."""
    if prompting is None:
        return None
    return {
        "mode": prompting.mode,
        "source": prompting.source or None,
        "choice": prompting.choice,
        "num_stored": prompting.num_stored,
        "num_changed": prompting.num_changed,
        "num_replaced": prompting.num_replaced,
        "reason": prompting.reason or None,
    }


def _choice_view(call: Call, position: int, timeline: Timeline) -> dict[str, Any]:
    choice = call.choices[position]
    reason = timeline.excluded.get((call.call_id, choice.index))
    return {
        "index": choice.index,
        "message": plain(choice.message),
        "finish_reason": choice.finish_reason,
        "truncated": choice.truncated,
        "reason": reason.value if reason is not None else None,
        "num_sampled_ids": len(choice.sampled_ids),
    }


def _request_view(call: Call) -> dict[str, Any]:
    """The request as the agent sent it, put together again; however deep it goes, it is not looked into."""
    rest: dict[str, Any] = dict(msgspec.json.decode(call.request, type=dict[str, msgspec.Raw]))
    return {**rest, "messages": [plain(message) for message in call.messages]} if call.messages else rest
