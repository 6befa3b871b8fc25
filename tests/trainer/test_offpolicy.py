"""Truncated importance sampling and its effective sample size, against what they are on paper."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from trainer.config import LossSettings
from trainer.offpolicy import level_of, off_policy_of, truncated_weights
from trainer.steps import OffPolicyLevel

LENGTHS = torch.tensor([2, 1, 3])
ENGINE = torch.tensor([-1.0, -2.0, -0.5, -1.5, -1.0, -0.25])
LEVELS: tuple[OffPolicyLevel, ...] = ("token", "sequence", "none")
rows = st.lists(st.lists(st.floats(-3, 3), min_size=1, max_size=5), min_size=1, max_size=5)


def ours(*ratios: float) -> Tensor:
    """The trainer's log-probabilities that have these ratios to the engine's."""
    return ENGINE + torch.tensor(ratios).log()


def test_each_token_is_weighed_by_its_own_ratio_up_to_the_cap():
    weights = truncated_weights(ours(0.5, 1, 4, 2, 1.5, 0.1), ENGINE, LENGTHS, "token", 2.0)
    torch.testing.assert_close(weights, torch.tensor([0.5, 1, 2, 2, 1.5, 0.1]))


def test_each_call_is_weighed_by_the_product_of_its_ratios_up_to_the_cap():
    weights = truncated_weights(ours(0.5, 1.5, 4, 2, 0.5, 1.25), ENGINE, LENGTHS, "sequence", 2.0)
    torch.testing.assert_close(weights, torch.tensor([0.75, 0.75, 2, 1.25, 1.25, 1.25]))


def test_where_nothing_is_weighed_every_weight_is_one():
    weights = truncated_weights(ours(0.5, 1, 4, 2, 1.5, 0.1), ENGINE, LENGTHS, "none", 2.0)
    torch.testing.assert_close(weights, torch.ones(6))


@pytest.mark.parametrize("level", LEVELS)
def test_on_policy_nothing_changes(level: OffPolicyLevel) -> None:
    torch.testing.assert_close(truncated_weights(ENGINE, ENGINE, LENGTHS, level, 2.0), torch.ones(6))
    found = off_policy_of(ENGINE, ENGINE, LENGTHS, level, 2.0)
    assert (found.level, found.cap, found.capped) == (level, 2.0, 0.0)
    assert found.ess == pytest.approx(1)


def test_the_effective_sample_size_is_that_of_tokens_or_of_calls_before_the_cap():
    some = ours(1, 2, 6, 1, 1, 1)
    by_token = off_policy_of(some, ENGINE, LENGTHS, "token", 2.5)
    assert by_token.ess == pytest.approx(12**2 / (6 * (1 + 4 + 36 + 1 + 1 + 1)))
    assert by_token.capped == pytest.approx(1 / 6)
    by_call = off_policy_of(some, ENGINE, LENGTHS, "sequence", 2.5)
    assert by_call.ess == pytest.approx((2 + 6 + 1) ** 2 / (3 * (4 + 36 + 1)))
    assert by_call.capped == pytest.approx(1 / 3)
    unweighed = off_policy_of(some, ENGINE, LENGTHS, "none", 2.0)
    assert (unweighed.ess, unweighed.capped) == (by_token.ess, 0.0)


def test_a_call_that_is_impossible_now_weighs_nothing_and_one_that_was_is_no_overflow():
    far = torch.tensor([-2000.0, -2000.0, -0.5, -1.5, -1.0, -0.25])
    assert float(truncated_weights(far, ENGINE, LENGTHS, "sequence", 2.0)[0]) == 0
    assert float(truncated_weights(ENGINE, far, LENGTHS, "sequence", 2.0)[0]) == 2
    assert off_policy_of(ENGINE, far, LENGTHS, "sequence", 2.0).ess == pytest.approx(1 / 3)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_without_the_cap_the_mean_weight_over_what_the_engine_samples_is_one(level: OffPolicyLevel) -> None:
    """Importance sampling is unbiased: over all two-token rows of a three-token vocabulary, by the engine's chances."""
    engine_V = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64).log()
    ours_V = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).log()
    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(3)).flatten()
    weights = truncated_weights(ours_V[pairs], engine_V[pairs], torch.full((9,), 2), level, math.inf)
    chances = engine_V[pairs].reshape(9, 2).sum(1).exp()
    mean_T = (weights.reshape(9, 2) * chances.unsqueeze(1)).sum(0)
    torch.testing.assert_close(mean_T, torch.ones(2, dtype=torch.float64))


@given(rows=rows, cap=st.floats(0.1, 10), level=st.sampled_from(LEVELS[:2]))
def test_weights_are_never_above_the_cap_and_rows_do_not_touch_each_other(
    rows: list[list[float]], cap: float, level: OffPolicyLevel
) -> None:
    def weighed(some: list[list[float]]) -> list[float]:
        flat = torch.tensor([value for row in some for value in row], dtype=torch.float64)
        lengths = torch.tensor([len(row) for row in some])
        return truncated_weights(flat, torch.zeros_like(flat), lengths, level, cap).tolist()

    together = weighed(rows)
    assert all(0 <= weight <= cap for weight in together)
    assert together == pytest.approx([weight for row in rows for weight in weighed([row])])
    flat = torch.tensor([value for row in rows for value in row], dtype=torch.float64)
    ess = off_policy_of(flat, torch.zeros_like(flat), torch.tensor([len(row) for row in rows]), level, cap).ess
    num = len(rows) if level == "sequence" else len(together)
    assert 1 / num - 1e-9 <= ess <= 1 + 1e-9


def test_no_gradient_goes_through_a_weight():
    leaf = ENGINE.clone().requires_grad_()
    assert not truncated_weights(leaf, ENGINE, LENGTHS, "sequence", 2.0).requires_grad


def test_the_run_of_a_loss_says_what_is_weighed():
    assert level_of("dapo", LossSettings()) == "token"
    assert level_of("dapo", LossSettings(off_policy="sequence")) == "sequence"
    assert level_of("vespo", LossSettings(off_policy="sequence")) == "token"
    assert level_of("vespo", LossSettings(bypass=True)) == "none"
