"""Versions in and out of a real engine while agents call: the same for the embedded engine and for a real vLLM."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engines.adapters import NUM_LAYERS, write_adapter
from tests.engines.reference import Reference
from tests.engines.stand import FRANCE, Gateway, Json, Stand

pytestmark = pytest.mark.slow

PROMPTS = ((504, 3575, 282, 4649, 314), (28, 253, 1036), (1780, 314, 260, 4649, 47, 2))
LONG = [{"role": "user", "content": "Here is a list of things. " + "One more thing, and then another. " * 40}]
NUM_STREAMED = {"embedded": 80, "vllm": 140}
"""About ten seconds of each engine."""
NEAR = 0.1
"""Nats between bf16 on an engine and float32 here, in the mean; the versions differ by far more."""


class Versions:
    """Two adapters that are clearly not the base and not each other, and what they should answer."""

    def __init__(self, model: str, folder: Path) -> None:
        self.folders = {name: folder / name for name in ("one", "two")}
        self.digests = {name: write_adapter(path, seed) for seed, (name, path) in enumerate(self.folders.items())}
        self.reference = Reference(model, self.folders)
        self.probes = {
            "one": self.reference.probe("one", None, PROMPTS),
            "two": self.reference.probe("two", "one", PROMPTS),
        }

    async def publish(self, gateway: Gateway, name: str) -> Any:
        """Copy a version under the gateway's adapters and publish it with its probe."""
        write_adapter(gateway.adapters_dir / name, list(self.folders).index(name))
        return await gateway.publish(name, self.digests[name], self.probes[name])


@pytest.fixture(scope="session")
def versions(model_folder: str, tmp_path_factory: pytest.TempPathFactory) -> Versions:
    return Versions(model_folder, tmp_path_factory.mktemp("versions"))


async def published(gateway: Gateway, versions: Versions, name: str) -> int:
    answer = await versions.publish(gateway, name)
    assert answer.status_code == 201, answer.text
    assert "probe: ok" in answer.json()["detail"]
    return int(answer.json()["version"])


async def tokens(gateway: Gateway, episode: Json, **body: Any) -> tuple[Any, list[int], list[int], list[float]]:
    """One greedy call: the answer, its prompt ids, its sampled ids and their log-probabilities."""
    answer = await gateway.chat(episode, {"return_token_ids": True, "logprobs": True, "max_tokens": 10, **body})
    assert answer.status_code == 200, answer.text
    said = answer.json()
    choice = said["choices"][0]
    told = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    return answer, said["prompt_token_ids"], choice["token_ids"], told


async def test_two_versions_answer_side_by_side_each_as_itself(gateway: Gateway, versions: Versions) -> None:
    episodes = {None: await gateway.episode()}
    await tokens(gateway, episodes[None])
    for number, name in enumerate(("one", "two"), start=1):
        assert await published(gateway, versions, name) == number
        episodes[name] = await gateway.episode()
        await tokens(gateway, episodes[name])
    for _ in range(2):
        answers = await asyncio.gather(*(tokens(gateway, episode) for episode in episodes.values()))
        for (name, _), (answer, prompt, sampled, told) in zip(episodes.items(), answers, strict=True):
            number = [None, "one", "two"].index(name)
            assert answer.headers["x-hone-version"] == str(number)
            gaps = {other: versions.reference.gap(other, prompt, sampled, told) for other in episodes}
            assert gaps[name] < 2 * NEAR, gaps
            assert all(gap > 2 * gaps[name] for other, gap in gaps.items() if other != name), gaps


async def test_a_swap_leaves_a_running_stream_under_its_version(
    stand: Stand, gateway: Gateway, versions: Versions
) -> None:
    await published(gateway, versions, "one")
    episode = await gateway.episode()
    num_tokens = NUM_STREAMED[stand.kind]
    body = {
        "model": "solver",
        "messages": FRANCE,
        "temperature": 0,
        "max_tokens": num_tokens,
        "ignore_eos": True,
        "stream": True,
        "logprobs": True,
        "return_token_ids": True,
    }
    headers = {"Authorization": f"Bearer {episode['api_key']}"}
    prompt: list[int] = []
    sampled: list[int] = []
    told: list[float] = []
    swap: asyncio.Task[int] | None = None
    num_before = 0
    started = asyncio.get_running_loop().time()
    async with gateway.running.admin.stream(
        "POST", "/v1/chat/completions", json=body, headers=headers, timeout=120
    ) as answer:
        assert answer.headers["x-hone-version"] == "1"
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            prompt += event.get("prompt_token_ids") or []
            for choice in event["choices"]:
                sampled += choice.get("token_ids") or []
                told += [entry["logprob"] for entry in (choice.get("logprobs") or {}).get("content") or []]
            if swap is None and len(sampled) > 15:
                swap = asyncio.create_task(published(gateway, versions, "two"))
            if swap is not None and not swap.done():
                num_before = len(sampled)
    assert swap is not None
    assert await swap == 2
    assert await gateway.active() == 2
    assert len(sampled) == len(told) == num_tokens
    assert num_before < num_tokens - 10, "the new version came while the stream went on"
    assert asyncio.get_running_loop().time() - started > 2
    gaps = {name: versions.reference.gap(name, prompt, sampled, told) for name in ("one", "two")}
    late = slice(num_before, None)
    since = versions.reference.gap("one", [*prompt, *sampled[:num_before]], sampled[late], told[late])
    assert gaps["one"] < NEAR < gaps["two"], gaps
    assert since < NEAR, "what came after the swap is of the old version too"
    fresh = await gateway.chat(await gateway.episode(), {"max_tokens": 1})
    assert fresh.headers["x-hone-version"] == "2"


async def test_nothing_of_the_old_version_is_left_in_prefix_caches(
    stand: Stand, gateway: Gateway, versions: Versions
) -> None:
    """Case C41: a long prompt under v1, a swap, the same prompt again: as a fresh v2 answers it."""
    await published(gateway, versions, "one")
    for _ in range(2):
        _, _, first, _ = await tokens(gateway, await gateway.episode(), messages=LONG)
    await published(gateway, versions, "two")
    answers = [await tokens(gateway, await gateway.episode(), messages=LONG) for _ in range(2)]
    for answer, prompt, sampled, told in answers:
        assert answer.headers["x-hone-version"] == "2"
        assert len(prompt) > 300
        assert sampled != first
        gaps = {name: versions.reference.gap(name, prompt, sampled, told) for name in ("one", "two")}
        assert gaps["two"] < NEAR, gaps
        assert gaps["one"] > 2 * NEAR, gaps
    assert sorted(await stand.adapters()) == sorted(
        f"solver@{number}-{versions.digests[name][:8]}" for number, name in ((1, "one"), (2, "two"))
    )


async def test_a_version_that_nobody_needs_is_unloaded(stand: Stand, gateway: Gateway, versions: Versions) -> None:
    await published(gateway, versions, "one")
    await published(gateway, versions, "two")
    async with asyncio.timeout(60):
        while list(await stand.adapters()) != [f"solver@2-{versions.digests['two'][:8]}"]:
            await asyncio.sleep(0.1)
    rolled = await gateway.running.admin.post("/v1/policies/solver/rollback", json={"version": 1}, timeout=60)
    assert rolled.status_code == 200, rolled.text
    answer, prompt, sampled, told = await tokens(gateway, await gateway.episode())
    assert answer.headers["x-hone-version"] == "1"
    assert versions.reference.gap("one", prompt, sampled, told) < NEAR


Break = Callable[[Path], str]
BROKEN: dict[str, Break] = {
    "keys of another model": lambda path: write_adapter(
        path, 7, rename=lambda key: key.replace("model.model.", "model.wrong.")
    ),
    "keys without peft's prefix": lambda path: write_adapter(
        path, 7, rename=lambda key: key.removeprefix("base_model.model.")
    ),
    "layers that are not there": lambda path: write_adapter(
        path, 7, rename=lambda key: key.replace(".layers.", f".layers.{NUM_LAYERS}")
    ),
    "tensors of no LoRA": lambda path: write_adapter(path, 7, rename=lambda key: key.replace("lora_", "delta_")),
    "modules that no engine knows": lambda path: write_adapter(
        path, 7, rename=lambda key: key.replace("q_proj", "query"), targets=["query"]
    ),
    "target modules that are not in the weights": lambda path: write_adapter(
        path, 7, layers=("mlp.up_proj",), targets=["q_proj"]
    ),
    "a rank above what the engine was started with": lambda path: write_adapter(path, 7, rank=64),
    "the weights of the version before": lambda path: write_adapter(path, 0),
    "weights that change nothing": lambda path: write_adapter(path, 7, size=0.0),
}


@pytest.mark.parametrize("fault", BROKEN)
async def test_an_adapter_that_would_not_be_served_fails_the_swap(
    stand: Stand, gateway: Gateway, versions: Versions, fault: str
) -> None:
    await published(gateway, versions, "one")
    before = await tokens(gateway, await gateway.episode())
    folder = gateway.adapters_dir / "broken"
    digest = BROKEN[fault](folder)
    answer = await gateway.publish("broken", digest, versions.probes["two"])
    assert answer.status_code == 409, answer.text
    assert answer.json()["error"]["message"]
    assert await gateway.active() == 1
    assert list(await stand.adapters()) == [f"solver@1-{versions.digests['one'][:8]}"]
    after = await tokens(gateway, await gateway.episode())
    assert after[0].headers["x-hone-version"] == "1"
    assert after[2] == before[2]


async def test_tensors_for_no_layer_fail_the_swap_without_a_probe_too(stand: Stand, gateway: Gateway) -> None:
    digest = BROKEN["keys of another model"](gateway.adapters_dir / "broken")
    answer = await gateway.publish("broken", digest)
    assert answer.status_code == 409, answer.text
    assert await gateway.active() == 0
    assert await stand.adapters() == {}
    good = write_adapter(gateway.adapters_dir / "good", 7)
    assert (await gateway.publish("good", good)).status_code == 201


async def test_a_folder_that_is_not_there_fails_the_swap(gateway: Gateway, versions: Versions) -> None:
    await published(gateway, versions, "one")
    answer = await gateway.publish("nowhere", "0" * 64, versions.probes["two"])
    assert answer.status_code == 400
    assert await gateway.active() == 1


async def test_a_path_that_vanished_fails_the_load(stand: Stand, gateway: Gateway) -> None:
    async with stand.api() as api:
        said = await api.load(stand.url, "solver@9-gone", str(gateway.adapters_dir / "gone"))
    assert "gone" in said or "No adapter" in said
    assert "solver@9-gone" not in await stand.adapters()
