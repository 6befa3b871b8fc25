"""How much each row counts, so that an episode weighs the same however its calls are cut.

TRL's losses give every row, or every token, a weight of their own. The rule: a row's advantage is multiplied by the
weight an episode's token should have, divided by the weight TRL gives it. This scales the policy term only and is exact
for token-level ratios; KL and entropy terms keep TRL's weights by row. Pure; the loss itself is TRL's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from tracker.errors import SettingsError
from tracker.samples import Row

ROW_MEAN_LOSSES: Final = frozenset({"grpo", "sapo"})
"""The mean over a row's tokens, then over rows."""
ROW_SUM_LOSSES: Final = frozenset({"dr_grpo", "luspo"})
"""The sum over a row's tokens, divided by the number of rows (and a constant)."""
TOKEN_MEAN_LOSSES: Final = frozenset({"dapo", "bnpo", "cispo", "vespo"})
"""The mean over all tokens of the step."""
LOSSES: Final = ROW_MEAN_LOSSES | ROW_SUM_LOSSES | TOKEN_MEAN_LOSSES


def check_loss(loss: str) -> str:
    """The loss as it is, or `SettingsError`: better at start than at the first step."""
    if loss not in LOSSES:
        raise SettingsError(f"loss: {loss!r} is not one of {', '.join(sorted(LOSSES))}.")
    return loss


def row_weights(rows: Sequence[Row], loss: str) -> tuple[float, ...]:
    """The factor on each row's advantage; E episodes, B rows, n_e and n_r trained tokens of episode and row.

    Row mean: (1 / (E n_e)) / (1 / (B n_r)). Row sum: B / E. Token mean: 1.
    """
    check_loss(loss)
    tokens = Counter[str]()
    for row in rows:
        tokens[row.episode_id] += len(row.sampled_ids)
    ratio = len(rows) / len(tokens)
    if loss in ROW_MEAN_LOSSES:
        return tuple(ratio * len(row.sampled_ids) / tokens[row.episode_id] for row in rows)
    return (ratio if loss in ROW_SUM_LOSSES else 1.0,) * len(rows)
