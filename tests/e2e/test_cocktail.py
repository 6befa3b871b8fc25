"""A run that mixes two families of tasks: every step holds them in the proportions of the weights."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.examples import drive, stack_of, trained_batches
from tracker.errors import BadRequest
from tracker.types import Scope

pytestmark = pytest.mark.slow
RUN = "cocktail"


async def test_every_step_of_a_cocktail_holds_its_families_in_their_proportions(tiny_model: Path, tmp_path: Path):
    async with (
        stack_of(tmp_path, {"solver": tiny_model}) as stack,
        stack.client(Scope.ADMIN) as admin,
    ):
        told = await drive(stack, "train_cocktail.py", "--versions", "2", "--group-size", "4")
        assert "step 1: lookup 2 groups" in told
        with pytest.raises(BadRequest, match="'lookup/', 'shout/'") as refused:
            await admin.start_episode("sing/lamp", run=RUN, idempotency_key="sing")
        assert refused.value.status == 400

        batches = await trained_batches(admin, {"solver": 2})
        tasks = {group["group_id"]: group["task"] async for group in admin.groups(RUN)}
        for batch in batches:
            families = Counter(tasks[group_id].split("/")[0] for group_id in batch["group_ids"])
            assert families == {"lookup": 2, "shout": 1}
            shares = batch["metrics"]["families"]
            assert {family: share["groups"] for family, share in shares.items()} == families
            means = [share["reward_mean"] for share in shares.values() for _ in range(share["groups"])]
            assert sum(means) / len(means) == pytest.approx(batch["metrics"]["reward_mean"])
