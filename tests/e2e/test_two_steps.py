"""Two training steps with real parts: Redis, SQLite, the embedded engine, TRL; over a tiny model in float32."""

from pathlib import Path

import pytest

from tests.e2e.stack import GROUP_SIZE, POLICY, RUN, Json, Player, player, running_stack, until

pytestmark = pytest.mark.slow
PROMPT = [{"role": "user", "content": "one two three"}]


async def first_token(play: Player, version: int) -> dict[str, float]:
    """The likeliest first tokens after one prompt, as a version scores them."""
    name = f"fixed-{version}-{play.num_groups}"
    episode = await play.starter.start_episode(name, run="eval", version=version, idempotency_key=name)
    body = {"model": POLICY, "messages": PROMPT, "max_tokens": 1, "logprobs": True, "top_logprobs": 10}
    env = episode["env"]
    answer = await play.http.post(
        f"{env['OPENAI_BASE_URL']}/chat/completions",
        json=body,
        headers={"Authorization": f"Bearer {env['OPENAI_API_KEY']}"},
    )
    assert answer.headers["x-hone-version"] == str(version), answer.text
    entries = answer.json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    return {entry["token"]: entry["logprob"] for entry in entries}


async def trained_episodes(play: Player, batch: Json) -> set[str]:
    groups = [group async for group in play.reader.groups(RUN) if group["group_id"] in batch["group_ids"]]
    return {member["episode_id"] for group in groups for member in group["members"]}


async def test_two_steps_end_to_end(tiny_model: Path, tmp_path: Path):
    async with running_stack(tmp_path, tiny_model) as stack, player(stack) as play:
        await play.reader.create_run("eval", mode="eval")
        await play.until_version(1)
        on_first = await first_token(play, 1)
        await play.until_version(2)

        policy = (await play.reader.policies())[0]
        versions = {version["version"]: version for version in policy["versions"]}
        assert versions[2]["state"] == "active", versions[2]
        assert versions[1]["digest"] != versions[2]["digest"]
        adapters = [stack.plan.settings.stores.adapters_dir / versions[number]["folder"] for number in (1, 2)]
        weights = [(folder / "adapter_model.safetensors").read_bytes() for folder in adapters]
        assert weights[0] != weights[1]

        assert await first_token(play, 1) == pytest.approx(on_first, abs=1e-5)
        on_second = await first_token(play, 2)
        shared = on_first.keys() & on_second.keys()
        assert max(abs(on_first[token] - on_second[token]) for token in shared) > 1e-3

        async def is_trained() -> bool:
            return sum(batch["state"] == "trained" for batch in await play.batches()) >= 2

        await until(is_trained)
        for batch in (await play.batches())[:2]:
            metrics = batch["metrics"]
            sampled = [
                sum(sum(sample["loss_mask"]) for sample in (await play.reader.samples(episode_id))["samples"])
                for episode_id in await trained_episodes(play, batch)
            ]
            assert len(sampled) == len(batch["group_ids"]) * GROUP_SIZE
            assert metrics["trained_tokens"] == sum(sampled)
        first = (await play.batches())[0]["metrics"]
        assert first["gap_at_no_lag"]["maximum"] <= 1e-4, first
        assert first["lag_max"] == 0
