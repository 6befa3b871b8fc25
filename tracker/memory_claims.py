"""What the memory store knows for claims: sessions, attempts and answers, as plainly as `claims.py` can be kept.

For tests and for reading: `redis_claims.py` holds the same in Lua. Which episodes are open is asked of the store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tracker.claims import PENDING_MS, UNDELIVERED, Claim, Claimed, Note
from tracker.types import Call

FLIGHT: Final = "flight"
GAVE: Final = "gave"
FAILED: Final = "failed"


@dataclass(slots=True)
class _Attempt:
    name: str
    episode_id: str
    retry: int
    state: str = FLIGHT
    is_retried: bool = False


@dataclass(slots=True)
class _Answer:
    episode_id: str
    role: str
    num_claims: int = 0


class MemoryClaims:
    """The index of implicit episodes. `is_open` and `is_pending` tell how an episode stands at a time."""

    def __init__(self, is_open: Callable[[str, int], bool], is_pending: Callable[[str], bool]) -> None:
        self._is_open = is_open
        self._is_pending = is_pending
        self._sessions: dict[tuple[bytes, bytes], tuple[str, int]] = {}
        self._attempts: defaultdict[tuple[bytes, str], list[_Attempt]] = defaultdict(list)
        self._answers: defaultdict[tuple[bytes, bytes], list[_Answer]] = defaultdict(list)

    def claim(self, claim: Claim) -> Claimed:
        """One claim, decided."""
        named = self._of_session(claim) or self._of_attempt(claim)
        answer = self._of_answers(claim, named)
        if answer is not None:
            answer.num_claims += 1
        episode_id = named or (claim.proposed if answer is None else answer.episode_id)
        attempt = _Attempt(name=claim.attempt, episode_id=episode_id, retry=claim.retry)
        self._attempts[claim.scope, claim.body_digest].append(attempt)
        is_open = self._takes(episode_id, claim)
        return Claimed(episode_id=episode_id, is_open=is_open, role=None if answer is None else answer.role)

    def note(self, call: Call, note: Note) -> None:
        """What a call that was recorded leaves."""
        for attempt in self._attempts[note.scope, call.body_digest]:
            if attempt.name == note.attempt:
                attempt.state = FAILED if call.state in UNDELIVERED else GAVE
        for trace in note.answers:
            self._answers[note.scope, trace].append(_Answer(episode_id=call.episode_id, role=note.role))

    def _takes(self, episode_id: str, claim: Claim) -> bool:
        return episode_id != claim.avoided and self._is_open(episode_id, claim.now_ms)

    def _of_session(self, claim: Claim) -> str | None:
        if claim.session is None:
            return None
        key = claim.scope, claim.session
        episode_id, since_ms = self._sessions.get(key, ("", 0))
        is_recent = episode_id != claim.avoided and claim.now_ms - since_ms < PENDING_MS
        if not self._takes(episode_id, claim) and not (is_recent and self._is_pending(episode_id)):
            self._sessions[key] = claim.proposed, claim.now_ms
        return self._sessions[key][0]

    def _of_attempt(self, claim: Claim) -> str | None:
        attempts = self._attempts[claim.scope, claim.body_digest]
        found = [
            attempt
            for attempt in attempts
            if attempt.retry < claim.retry and not attempt.is_retried and self._takes(attempt.episode_id, claim)
        ]
        repeated = _repeated(found)
        if repeated is None:
            return None
        repeated.is_retried = True
        return repeated.episode_id

    def _of_answers(self, claim: Claim, named: str | None) -> _Answer | None:
        """The answer that the conversation goes on from; within the named episode, if there is one."""
        for trace in claim.traces:
            known = [
                answer
                for answer in self._answers.get((claim.scope, trace), ())
                if named is None or answer.episode_id == named
            ]
            if known:
                return self._least_claimed(known, claim)
        return None

    def _least_claimed(self, answers: Iterable[_Answer], claim: Claim) -> _Answer | None:
        fitting = [answer for answer in answers if self._takes(answer.episode_id, claim)]
        return min(fitting, key=lambda answer: answer.num_claims, default=None)


def _repeated(attempts: Sequence[_Attempt]) -> _Attempt | None:
    """The attempt that a retry repeats, where that can be told."""
    by_state = {state: [one for one in attempts if one.state == state] for state in (FAILED, FLIGHT, GAVE)}
    if by_state[FAILED]:
        return by_state[FAILED][0]
    likely = by_state[FLIGHT] or by_state[GAVE]
    return likely[0] if len(likely) == 1 else None
