"""Two training steps with real parts: Redis, SQLite, the embedded engine, TRL; over a tiny model in float32."""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.e2e.stack import GROUP_SIZE, POLICY, RUN, Json, Player, player, running_stack, until
from tracker.codec import decode_calls, encode_calls
from tracker.types import Call

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
        # A third one may have followed by now.
        assert versions[2]["state"] in ("active", "retired"), versions[2]
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
            assert batch["checks"]["trained_tokens"] == sum(sampled)
        told = await play.reader.run(RUN)
        first = (await play.batches())[0]["metrics"]
        assert first["gap_at_no_lag"]["maximum"] <= 1e-4, first
        assert first["lag_max"] == 0
    assert told["training"][POLICY]["context_faithful"] == told["training"][POLICY]["sampled_faithful"] == 1.0
    await verify_and_spoil(tmp_path / "data")


async def hone_verify(data_dir: Path) -> tuple[int, str]:
    """`hone verify` in a process of its own: its exit status and what it prints."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HONE_")}
    command = (sys.executable, "-m", "gateway.cli", "verify", "--run", RUN)
    process = await asyncio.create_subprocess_exec(
        *command, env={**env, "HONE_DATA_DIR": str(data_dir)}, stdout=subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


async def verify_and_spoil(data_dir: Path) -> None:
    """Every batch holds; then one token of one call is another, and its batch fails with that call's name."""
    status, told = await hone_verify(data_dir)
    assert status == 0, told
    assert told.count("ok ") >= 2
    assert "context-faithful 100.00%, sampled-faithful 100.00%" in told
    with sqlite3.connect(data_dir / "hone.db") as database:
        query = "SELECT manifest FROM batches WHERE state = 'trained' ORDER BY step"
        span = json.loads(database.execute(query).fetchone()[0])["spans"][0]
        of_episode = {"episode": span["episode_id"]}
        query = "SELECT blob FROM timelines WHERE episode_id = :episode"
        calls = decode_calls(database.execute(query, of_episode).fetchone()[0])
        blob = encode_calls([flipped(call) if call.call_id == span["call_id"] else call for call in calls])
        database.execute("UPDATE timelines SET blob = :blob WHERE episode_id = :episode", {"blob": blob, **of_episode})
    database.close()
    status, told = await hone_verify(data_dir)
    assert status == 1
    (failed,) = (line for line in told.splitlines() if line.startswith("FAILED"))
    assert f"episode {span['episode_id']}, call {span['call_id']}, choice 0, offset {span['start']}: " in failed


def flipped(call: Call) -> Call:
    """The call with its last sampled token another."""
    (choice,) = call.choices
    ids = (*choice.sampled_ids[:-1], choice.sampled_ids[-1] ^ 1)
    return replace(call, choices=(replace(choice, sampled_ids=ids),))
