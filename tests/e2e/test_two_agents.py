"""Two agents in one episode, each a policy: two adapters on one base and one engine, or two bases on two engines."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from gateway.client import Client
from gateway.local.up import LocalStack
from tests.e2e.examples import drive, stack_of, trained_batches
from tests.e2e.stack import Json
from tracker.types import Scope

pytestmark = pytest.mark.slow
RUN = "two-agents"
AGENTS = ("solver", "checker")
NUM_VERSIONS = 2


@pytest.mark.parametrize("num_bases", [1, 2])
async def test_each_agent_s_policy_learns_from_its_own_calls_alone(tiny_model: Path, tmp_path: Path, num_bases: int):
    other = tmp_path / "other" if num_bases == 2 else tiny_model
    if num_bases == 2:
        shutil.copytree(tiny_model, other)
    async with (
        stack_of(tmp_path, dict(zip(AGENTS, (tiny_model, other), strict=True))) as stack,
        stack.client(Scope.ADMIN) as reader,
    ):
        told = await drive(stack, "train_two_agents.py", "--versions", str(NUM_VERSIONS), "--group-size", "4")
        assert all(f"{agent}: " in told for agent in AGENTS)
        check_versions(stack, {policy["policy"]: policy for policy in await reader.policies()})
        # First what was trained, then the episodes, which are whole by then: training goes on meanwhile.
        trained = await trained_batches(reader, dict.fromkeys(AGENTS, NUM_VERSIONS))
        calls, tokens = await called(reader)
        assert len({call["engine"] for listed in calls.values() for call in listed}) == num_bases
        for agent in AGENTS:
            assert len({call["engine"] for call in calls[agent]}) == 1
        await check_batches(reader, trained, tokens)


def check_versions(stack: LocalStack, policies: dict[str, Json]) -> None:
    """Both lines have versions of their own, and no two adapters are the same."""
    digests: list[str] = []
    for agent in AGENTS:
        published = [version for version in policies[agent]["versions"] if version["state"] in ("active", "retired")]
        assert len(published) >= NUM_VERSIONS
        digests += [version["digest"] for version in published]
        checkpoints = stack.plan.settings.stores.checkpoints_dir / agent
        assert list(checkpoints.glob("step-*"))
    assert len(set(digests)) == len(digests)


async def called(reader: Client) -> tuple[dict[str, list[Json]], dict[tuple[str, str], int]]:
    """agent -> its calls; (agent, episode) -> tokens that it sampled there."""
    calls: defaultdict[str, list[Json]] = defaultdict(list)
    tokens: defaultdict[tuple[str, str], int] = defaultdict(int)
    async for episode in reader.episodes(RUN):
        if episode["state"] != "archived":
            continue
        episode_id = episode["episode_id"]
        for call in (await reader.timeline(episode_id))["calls"]:
            calls[call["policy"]].append(call)
        for sample in (await reader.samples(episode_id))["samples"]:
            tokens[sample["policy"], episode_id] += sum(sample["loss_mask"])
            assert all(span["reward"] is not None for span in sample["spans"])
    return calls, tokens


async def check_batches(reader: Client, trained: list[Json], tokens: dict[tuple[str, str], int]) -> None:
    """Every step of a policy trained exactly what it sampled in the step's groups; a group may be in both lines."""
    members = {
        group["group_id"]: [member["episode_id"] for member in group["members"]] async for group in reader.groups(RUN)
    }
    steps: defaultdict[str, list[int]] = defaultdict(list)
    for batch in trained:
        metrics, policy = batch["metrics"], batch["policy"]
        episodes = [episode_id for group_id in batch["group_ids"] for episode_id in members[group_id]]
        assert metrics["policy"] == policy
        assert metrics["rows"] == len(episodes)
        assert metrics["trained_tokens"] == sum(tokens[policy, episode_id] for episode_id in episodes)
        steps[policy].append(batch["step"])
    for agent in AGENTS:
        assert sorted(steps[agent]) == list(range(1, len(steps[agent]) + 1))
        assert len(steps[agent]) >= NUM_VERSIONS
