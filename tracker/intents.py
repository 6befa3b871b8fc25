"""What becomes of an intent that nobody ended: the lost call, so that nothing an engine may have done goes unseen.

Pure; when an intent is due is decided by the stores.
"""

from __future__ import annotations

from tracker.types import Call, CallState, EpisodeHead, Intent, Reason


def lost_call(intent: Intent, at_ms: int) -> Call:
    """The record of a call whose worker died or whose deadline passed: all that its intent knew, and no tokens.

    >>> lost_call(Intent(call_id="c", episode_id="e", worker="w", deadline_ms=5, started_ms=1), 9).state
    <CallState.LOST: 'lost'>
    """
    return Call(
        call_id=intent.call_id,
        episode_id=intent.episode_id,
        index=intent.index,
        dialect=intent.dialect,
        policy=intent.policy,
        model=intent.model,
        version=intent.version,
        role=intent.role,
        state=CallState.LOST,
        reason=Reason.LOST,
        detail=f"Worker {intent.worker} did not end this call before its deadline.",
        started_ms=intent.started_ms,
        ended_ms=at_ms,
        key_id=intent.key_id,
        body_digest=intent.body_digest,
        retry=intent.retry,
    )


def fixed_version(head: EpisodeHead, policy: str) -> int | None:
    """The version asked for when the episode was created, where it is this policy's; such a one is never re-pinned."""
    return head.version if head.policy in (None, policy) else None
