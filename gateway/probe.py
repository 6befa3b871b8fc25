"""Whether an engine serves the version it says it serves: a few scored tokens against what the trainer computed. Pure.

The trainer picks tokens whose log-probability moved most between this version, the one before and the base. An engine
that serves the version is nearer to its values than to either other. Where the versions differ by less than three
times the noise of the arithmetic, the tokens cannot tell, and the digest of the files has to do (`weak`); where only
the version before is that near, they can still tell it from the base, which an adapter that does nothing serves as.
The noise is what the trainer estimates, or what the engine shows: where it is no nearer to either version than a third
of what lies between them, its arithmetic is coarser than the step, and cannot say which one it serves; it still has to
be far nearer to the version than to the base.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final, Literal

from gateway.scoring import TOKEN_ID
from tracker.types import Probe, Record

NOISE_FACTOR: Final = 3.0


class Told(Record, frozen=True):
    """What an engine says of a token."""

    logprob: float
    is_most: bool = False
    """It is none of the alternatives: its log-probability is this at most."""

    def distance(self, expected: float) -> float:
        """How far it is from a value, at least."""
        return max(0.0, expected - self.logprob) if self.is_most else abs(expected - self.logprob)


class Verdict(Record, frozen=True):
    """What a probe found."""

    accepted: bool
    detail: str


def is_weak(probe: Probe | None) -> bool:
    """Whether the trainer's own difference is too small to be seen on an engine."""
    return probe is None or not (_is_seen(probe, "previous") and _is_seen(probe, "base"))


def is_blind(probe: Probe | None) -> bool:
    """Whether a probe cannot even tell the version from the base."""
    return probe is None or not _is_seen(probe, "base")


def logprob_in(top: Mapping[str, float], token_id: int) -> Told | None:
    """A token's log-probability among an engine's alternatives; if it is none of them, it is at most their least."""
    if not any(token.startswith(TOKEN_ID) for token in top):
        return None
    known = top.get(f"{TOKEN_ID}{token_id}")
    return Told(logprob=min(top.values()), is_most=True) if known is None else Told(logprob=known)


def judge_probe(probe: Probe, scored: Sequence[Told | None]) -> Verdict:
    """Is the engine nearer to this version than to the one before and to the base?

    >>> from tracker.types import ProbePoint
    >>> point = ProbePoint(prompt_ids=(1,), token_id=2, logprob=-1.0, previous=-2.0, base=-3.0)
    >>> judge_probe(Probe(points=(point,)), [Told(logprob=-1.1)]).accepted
    True
    >>> judge_probe(Probe(points=(point,)), [Told(logprob=-2.9)]).accepted
    False
    """
    pairs = [(point, value) for point, value in zip(probe.points, scored, strict=True) if value is not None]
    if not pairs:
        return Verdict(accepted=True, detail="probe: weak (the engine gives no alternatives by token id)")
    own = fmean(value.distance(point.logprob) for point, value in pairs)
    previous = fmean(value.distance(point.previous) for point, value in pairs)
    base = fmean(value.distance(point.base) for point, value in pairs)
    distances = f"{own:.4f} from this version, {previous:.4f} from the one before, {base:.4f} from the base"
    step = fmean(abs(point.logprob - point.previous) for point, _ in pairs)
    is_coarse = NOISE_FACTOR * min(own, previous) >= step and NOISE_FACTOR * own <= base
    if own < base and (is_weak(probe) or (own >= previous and is_coarse)):
        return Verdict(accepted=True, detail=f"probe: weak ({distances}; the digest decides)")
    if own < previous and own < base:
        return Verdict(accepted=True, detail=f"probe: ok ({distances})")
    return Verdict(accepted=False, detail=f"the probe is {distances}")


def _is_seen(probe: Probe, other: Literal["previous", "base"]) -> bool:
    """Whether the version's difference from another is more than the arithmetic's noise."""
    moved = [abs(point.logprob - (point.previous if other == "previous" else point.base)) for point in probe.points]
    return bool(moved) and fmean(moved) > 0 and fmean(moved) >= NOISE_FACTOR * probe.noise
