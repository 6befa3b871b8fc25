"""The client before a gateway as users start it; every block of docs/client.md is run as it stands."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from gateway.client import AsyncHone, Attempt, Hone
from gateway.client.views import EpisodeView
from tests.fakes.adapter_files import marked_weights
from tests.fakes.gateway_process import ROOT, GatewayProcess, environment, gateway_process
from tracker.errors import NotFound
from tracker.types import EpisodeState, EpisodeStatus

pytestmark = pytest.mark.slow
PAGE = (ROOT / "docs" / "client.md").read_text()
README = (ROOT / "README.md").read_text()
EXAMPLES = ROOT / "examples"
NOTEBOOK = EXAMPLES / "first_agent.ipynb"
BLOCK = re.compile(r"```python\n(.*?)```\n", re.DOTALL)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    async with gateway_process(tmp_path / "data", HONE_SWEEP_INTERVAL_S="0.05") as running:
        yield running


async def published(gateway: GatewayProcess) -> None:
    """A trainer's part: a version goes live."""
    weights = marked_weights(b"docs")
    folder = gateway.data_dir / "adapters" / "solver-docs"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4}))
    (folder / "adapter_model.safetensors").write_bytes(weights)
    body = {"folder": folder.name, "digest": hashlib.sha256(weights).hexdigest()}
    answer = await gateway.send("POST", "/v1/policies/solver/versions", body)
    assert answer.status == 201, answer.raw


async def test_every_block_of_the_page_and_the_readme_runs(gateway: GatewayProcess, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    short = next(block for block in BLOCK.findall(README) if "hone.rollout" in block)
    script.write_text("\n".join([*BLOCK.findall(PAGE), 'tasks = ["Is tar black?"]', short]))
    env = {**environment({}), "HONE_BASE_URL": gateway.url, "HONE_API_KEY": gateway.operator_key}
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", str(script), env=env, cwd=tmp_path, stdout=-1, stderr=-2
    )
    async with AsyncHone(gateway.url, gateway.operator_key) as hone, asyncio.timeout(240):
        while running.returncode is None and not [group async for group in hone.groups(task="Is grass green?")]:
            await asyncio.sleep(0.05)
        if running.returncode is None:
            await published(gateway)
    told, _ = await running.communicate()
    assert running.returncode == 0, told.decode()
    assert "new episodes get version 1" in told.decode()


async def test_the_example_of_an_evaluation_runs(gateway: GatewayProcess) -> None:
    keys = dict.fromkeys(("agent", "reward", "read", "admin"), gateway.operator_key)
    (gateway.data_dir / "keys.json").write_text(json.dumps(keys))
    where = ("--url", gateway.url, "--data-dir", str(gateway.data_dir))
    evaluating = await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "examples" / "evaluate.py"), *where, env=environment({}), stdout=-1, stderr=-2
    )
    told, _ = await evaluating.communicate()
    assert evaluating.returncode == 0, told.decode()
    assert "solver version 0: 0% of 16 at temperature 0" in told.decode()  # the scripted engine knows no price
    async with AsyncHone(data_dir=gateway.data_dir, base_url=gateway.url) as hone:
        episodes = [episode async for episode in hone.episodes(run="held-out")]
    assert [(episode.reward, episode.group_id, episode.versions) for episode in episodes] == [
        (0.0, None, {"solver": 0})
    ] * 16


def test_the_notebook_is_its_script(tmp_path: Path) -> None:
    script = tmp_path / "first_agent.py"
    script.write_bytes((EXAMPLES / script.name).read_bytes())
    subprocess.run([sys.executable, str(EXAMPLES / "as_notebook.py"), str(script)], check=True)
    made = script.with_suffix(".ipynb").read_text()
    assert made == NOTEBOOK.read_text(), "python examples/as_notebook.py examples/first_agent.py"
    nbformat.validate(nbformat.reads(made, 4))


async def executed(notebook: NotebookNode, gateway: GatewayProcess, folder: Path) -> list[str]:
    """What each cell of code shows in the end, run by a kernel of its own as a notebook runs it."""
    env = {**environment({}), "HONE_BASE_URL": gateway.url, "HONE_API_KEY": gateway.operator_key, "HOME": str(folder)}
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}})
    await client.async_execute(env=env)
    return [shown(cell) for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell: NotebookNode) -> str:
    return "".join(output["text"] if "text" in output else output["data"]["text/plain"] for output in cell.outputs)


async def test_the_notebook_runs(gateway: GatewayProcess, tmp_path: Path) -> None:
    running = asyncio.create_task(executed(nbformat.read(NOTEBOOK, 4), gateway, tmp_path))
    async with AsyncHone(gateway.url, gateway.operator_key) as hone, asyncio.timeout(240):
        while not running.done() and len([group async for group in hone.groups(run="first-agent")]) < 3:
            await asyncio.sleep(0.05)
        await until_archived(hone, "first-agent")
        await published(gateway)
        begun, _, played, compared, waited, told, _ = await running
    assert begun == "solver is at version 0\n"
    assert re.fullmatch(r"episodes 12/12, \d+ s, reward \d\.\d\d12 attempts\n", played)
    assert len(re.findall(r"\[[01]\.\d(, [01]\.\d){3}\]\n", compared)) == 3
    assert re.fullmatch(r"episodes 12/12, \d+ s, reward \d\.\d\d", waited)
    assert re.match(r"version 0: reward \d\.\d\d of 12 episodes\n", told)


async def test_a_bar_is_one_output_of_the_cell_that_plays(gateway: GatewayProcess, tmp_path: Path) -> None:
    cells = [
        "from gateway.client import AsyncHone, Hone\nhone = Hone()\nhone.create_run('bars', mode='eval')",
        "for attempt in hone.rollout(['a', 'b', 'c'], lambda episode, task: 0.5, run='bars'):\n    print(attempt.task)",
        "async def agent(episode, task):\n    raise ValueError\n"
        "asked = AsyncHone().rollout(iter(['d', 'e']), agent, run='bars')\n"
        "[attempt.reward async for attempt in asked]",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    opened, blocking, asynchronous = await executed(notebook, gateway, tmp_path)
    assert opened.startswith("RunSettings(")
    assert re.fullmatch(r"episodes 3/3, \d+ s, reward 0\.50[abc\n]{6}", blocking)
    assert re.fullmatch(r"episodes 2, \d s, 2 broken\[None, None\]", asynchronous)
    drawn = notebook.cells[1].outputs[0]["data"]["text/html"]
    assert drawn.startswith('<progress value="3" max="3"></progress> episodes 3/3')


async def until_archived(hone: AsyncHone, run: str) -> list[EpisodeView]:
    async with asyncio.timeout(60):
        while True:
            episodes = [episode async for episode in hone.episodes(run=run)]
            if all(episode.state is EpisodeState.ARCHIVED for episode in episodes):
                return episodes
            await asyncio.sleep(0.05)


def play(episode: Any, task: str) -> float:
    """An agent of one call; it breaks on one of the tasks."""
    body = {"model": "solver", "messages": [{"role": "user", "content": task}]}
    key = {"Authorization": f"Bearer {episode.api_key}"}
    httpx.post(f"{episode.base_url}/chat/completions", json=body, headers=key, timeout=60).raise_for_status()
    if task == "bad":
        raise ValueError("no JSON")
    return 1.0


async def played(hone: AsyncHone, kind: type[Any], gateway: GatewayProcess) -> list[Attempt[str]]:
    async def playing(episode: Any, task: str) -> float:
        return await asyncio.to_thread(play, episode, task)

    if kind is AsyncHone:
        return [attempt async for attempt in hone.rollout(["good", "bad"], playing, run="r")]
    with Hone(gateway.url, gateway.operator_key) as blocking:
        return await asyncio.to_thread(lambda: list(blocking.rollout(["good", "bad"], play, run="r")))


@pytest.mark.parametrize("kind", [AsyncHone, Hone], ids=["async", "blocking"])
async def test_a_rollout_fills_groups_whose_samples_can_be_read(gateway: GatewayProcess, kind: type[Any]) -> None:
    async with AsyncHone(gateway.url, gateway.operator_key) as hone:
        await hone.create_run("r", group_size=3)
        attempts = await played(hone, kind, gateway)
        assert sorted((attempt.task, attempt.status) for attempt in attempts) == [
            *[("bad", EpisodeStatus.FAILED)] * 3,
            *[("good", EpisodeStatus.OK)] * 3,
        ]
        assert len(await until_archived(hone, "r")) == 6
        groups = {group.task: group async for group in hone.groups(run="r")}
        assert [member.reward for member in groups["good"].members] == [1.0] * 3
        assert {member.status for member in groups["bad"].members} == {EpisodeStatus.FAILED}
        for attempt in attempts:
            told = await hone.samples(attempt.episode_id)
            assert (told.num_calls, len(told.samples)) == (1, 1)
            assert sum(told.samples[0].loss_mask) > 0
            [call] = (await hone.timeline(attempt.episode_id)).calls
            assert call.request["messages"] == [{"role": "user", "content": attempt.task}]


async def test_a_run_that_is_not_there_ends_the_rollout(gateway: GatewayProcess) -> None:
    with Hone(gateway.url, gateway.operator_key) as hone, pytest.raises(NotFound, match="nobody"):
        await asyncio.to_thread(next, hone.rollout(["t"], play, run="nobody"))
