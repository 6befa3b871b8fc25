"""Laws of sampling: what is reported is what was drawn from."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.engine.sampling import Draw, SamplingSettings, draw, invert


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw_one(logits: torch.Tensor, settings: SamplingSettings, seed: int = 0, num_top: int = 0) -> Draw:
    return draw(logits[None], [settings], [generator(seed)], [num_top])[0]


def logits(seed: int, size: int = 700) -> torch.Tensor:
    return torch.randn(size, generator=generator(seed)) * 3


@given(seed=st.integers(0, 1000), temperature=st.floats(0.1, 5.0))
def test_a_draw_reports_its_logprob_under_the_temperature(seed: int, temperature: float) -> None:
    row = logits(seed)
    one = draw_one(row, SamplingSettings(temperature=temperature), seed)
    expected = torch.log_softmax(row.double() / temperature, -1)[one.token_id].item()
    assert one.logprob == pytest.approx(expected, abs=1e-4)


@given(seed=st.integers(0, 1000), top_k=st.integers(1, 50), top_p=st.floats(0.01, 1.0))
def test_a_truncated_draw_reports_a_distribution_that_sums_to_one_over_what_is_left(
    seed: int, top_k: int, top_p: float
) -> None:
    row = logits(seed, 300)
    one = draw_one(row, SamplingSettings(top_k=top_k, top_p=top_p), seed, num_top=50)
    left = [p for _, p in one.top if p > -1e30]
    assert len(left) <= top_k
    assert math.fsum(math.exp(p) for p in left) == pytest.approx(1.0, abs=1e-4)
    assert one.token_id in [i for i, p in one.top if p > -1e30]


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    row = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    one = draw_one(row, SamplingSettings(top_p=0.7), num_top=4)
    assert [i for i, p in one.top if p > -1e30] == [0, 1]
    assert one.top[0][1] == pytest.approx(math.log(0.5 / 0.8), abs=1e-5)


def test_min_p_drops_what_is_less_likely_than_a_share_of_the_best() -> None:
    row = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    one = draw_one(row, SamplingSettings(min_p=0.5), num_top=4)
    assert [i for i, p in one.top if p > -1e30] == [0, 1]


@given(seed=st.integers(0, 1000))
def test_a_temperature_of_zero_takes_the_most_likely_and_reports_the_plain_distribution(seed: int) -> None:
    row = logits(seed)
    one = draw_one(row, SamplingSettings(temperature=0.0, top_k=3, top_p=0.2))
    assert one.token_id == row.argmax().item()
    assert one.logprob == pytest.approx(torch.log_softmax(row, -1).max().item(), abs=1e-5)


@given(seed=st.integers(0, 1000))
def test_a_top_k_of_one_equals_greedy(seed: int) -> None:
    row = logits(seed)
    one = draw_one(row, SamplingSettings(top_k=1), seed)
    assert one.token_id == row.argmax().item()
    assert one.logprob == pytest.approx(0.0, abs=1e-6)


def test_a_bias_changes_what_is_drawn_and_what_is_reported() -> None:
    row = torch.zeros(10)
    one = draw_one(row, SamplingSettings(logit_bias=((3, 100.0),)))
    assert one.token_id == 3
    assert one.logprob == pytest.approx(0.0, abs=1e-6)
    assert row.abs().max() == 0


def test_the_companions_of_a_row_do_not_change_its_draw() -> None:
    rows = torch.stack([logits(i) for i in range(5)])
    hot = SamplingSettings(temperature=2.0)
    kinds = [
        SamplingSettings(),
        hot,
        SamplingSettings(temperature=0),
        SamplingSettings(top_k=5),
        SamplingSettings(top_p=0.5),
    ]
    together = draw(rows, kinds, [generator(i) for i in range(5)], [2] * 5)
    alone = [draw_one(rows[i], kinds[i], i, 2) for i in range(5)]
    assert [one.token_id for one in together] == [one.token_id for one in alone]
    assert [one.logprob for one in together] == pytest.approx([one.logprob for one in alone], abs=1e-6)


@given(
    weights=st.lists(st.sampled_from([0.0, 0.0, 1e-6, 0.25, 1.0]), min_size=1, max_size=600).filter(any),
    uniform=st.floats(0.0, 1.0, exclude_max=True),
)
def test_the_inverse_never_gives_a_token_of_probability_zero(weights: list[float], uniform: float) -> None:
    probs = torch.tensor([weights]) / sum(weights)
    chosen = int(invert(probs, torch.tensor([uniform], dtype=torch.float64))[0])
    assert weights[chosen] > 0
    before = math.fsum(probs[0, :chosen].tolist())
    upto = before + probs[0, chosen].item()
    total = math.fsum(probs[0].tolist())
    assert before - 1e-9 <= uniform * total <= upto + 1e-9


def test_draws_follow_the_distribution() -> None:
    probs = torch.rand(1, 1000, generator=generator(3)) ** 4
    probs /= probs.sum()
    uniform = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    counts = torch.bincount(invert(probs.expand(20_000, -1), uniform), minlength=1000) / 20_000
    assert (counts - probs[0]).abs().max() < 2e-4
