"""An episode weighs the same however its calls are cut."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.models import row
from tracker.errors import SettingsError
from tracker.samples import Row
from trainer.weights import LOSSES, ROW_MEAN_LOSSES, ROW_SUM_LOSSES, check_loss, row_weights

cuts = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=4)


def rows_of_cuts(episodes: list[list[int]]) -> list[Row]:
    return [row([0], [1] * length, episode=str(number)) for number, calls in enumerate(episodes) for length in calls]


@given(cuts)
def test_under_a_mean_of_rows_each_episode_weighs_one_and_each_of_its_tokens_the_same(
    episodes: list[list[int]],
) -> None:
    rows = rows_of_cuts(episodes)
    for loss in ROW_MEAN_LOSSES:
        tokens = defaultdict[str, list[float]](list)
        for one, weight in zip(rows, row_weights(rows, loss), strict=True):
            tokens[one.episode_id] += [weight / (len(rows) * len(one.sampled_ids))] * len(one.sampled_ids)
        for shares in tokens.values():
            assert sum(shares) == pytest.approx(1 / len(episodes))
            assert shares == pytest.approx([shares[0]] * len(shares))


@given(cuts)
def test_under_a_sum_of_tokens_cutting_an_episode_changes_no_weight(episodes: list[list[int]]) -> None:
    cut, whole = rows_of_cuts(episodes), rows_of_cuts([[sum(calls)] for calls in episodes])
    for loss in LOSSES - ROW_MEAN_LOSSES:
        divisor = len(cut) if loss in ROW_SUM_LOSSES else 1
        other = len(whole) if loss in ROW_SUM_LOSSES else 1
        assert row_weights(cut, loss)[0] / divisor == pytest.approx(row_weights(whole, loss)[0] / other)


def test_a_loss_that_trl_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="dapo"):
        check_loss("ppo")
