"""Whether an engine serves the version it says it serves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.probe import Told, is_weak, judge_probe, logprob_in
from tracker.types import Probe, ProbePoint

logprobs = st.floats(-20, 0)


def point(logprob: float, previous: float, base: float) -> ProbePoint:
    return ProbePoint(prompt_ids=(1,), token_id=2, logprob=logprob, previous=previous, base=base)


points = st.lists(st.builds(point, logprobs, logprobs, logprobs), min_size=1, max_size=8)


@given(points, st.floats(0, 1))
def test_the_version_itself_is_accepted_and_the_one_before_is_not(given: list[ProbePoint], noise: float) -> None:
    probe = Probe(points=tuple(given), noise=noise)
    if is_weak(probe):
        return
    assert judge_probe(probe, [Told(logprob=p.logprob) for p in given]).accepted
    assert not judge_probe(probe, [Told(logprob=p.previous) for p in given]).accepted
    assert not judge_probe(probe, [Told(logprob=p.base) for p in given]).accepted


@pytest.mark.parametrize(
    ("probe", "weak"),
    [
        (None, True),
        (Probe(points=()), True),
        (Probe(points=(point(-1, -1, -1),)), True),
        (Probe(points=(point(-1, -1.2, -3),), noise=0.1), True),
        (Probe(points=(point(-1, -1.4, -3),), noise=0.1), False),
    ],
)
def test_a_difference_under_three_times_the_noise_is_weak(probe: Probe | None, weak: bool) -> None:
    assert is_weak(probe) is weak


def test_a_weak_probe_still_tells_the_version_from_the_base() -> None:
    probe = Probe(points=(point(-1, -1.2, -3),), noise=0.1)
    for scored in (-1, -1.2, -1.9):
        verdict = judge_probe(probe, [Told(logprob=scored)])
        assert verdict.accepted
        assert "weak" in verdict.detail
    assert not judge_probe(probe, [Told(logprob=-2.9)]).accepted, "an adapter that does nothing answers as the base"


def test_an_engine_coarser_than_the_step_is_taken_on_the_digest() -> None:
    probe = Probe(points=(point(-1, -1.35, -4.5), point(-2, -2.35, -5.5)), noise=0.05)
    coarse = judge_probe(probe, [Told(logprob=-1.6), Told(logprob=-2.2)])
    assert coarse.accepted
    assert "weak" in coarse.detail
    before = judge_probe(probe, [Told(logprob=-1.3), Told(logprob=-2.3)])
    assert not before.accepted, "it answers as the version before, to within a fraction of the step"
    assert not judge_probe(probe, [Told(logprob=-2.6), Told(logprob=-3.6)]).accepted, "half way to the base is neither"


def test_a_token_that_is_no_alternative_is_at_most_the_least_of_them() -> None:
    top = {"token_id:5": -0.1, "token_id:6": -3.0}
    assert logprob_in(top, 5) == Told(logprob=-0.1)
    assert logprob_in(top, 7) == Told(logprob=-3.0, is_most=True)
    assert logprob_in({"hello": -0.1}, 5) is None
    assert logprob_in({}, 5) is None


def test_a_token_that_is_no_alternative_speaks_for_what_makes_it_unlikely() -> None:
    probe = Probe(points=(point(-3, -9, -8),), noise=0.01)
    assert not judge_probe(probe, [Told(logprob=-4.5, is_most=True)]).accepted, "-9 is at most -4.5, -3 is not"
    assert judge_probe(probe, [Told(logprob=-4.5)]).accepted


def test_an_engine_that_names_no_ids_is_taken_on_the_digest() -> None:
    verdict = judge_probe(Probe(points=(point(-1, -2, -3),)), [None])
    assert verdict.accepted
    assert "weak" in verdict.detail
