"""Hot swaps: a new name and one load for every version, told once it serves; a swap that fails changes nothing."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from typing import Any

from tests.conformance.forms import CHAT, Answered, Json
from tests.conformance.rules import rule
from tests.conformance.scene import Episode, Scene, rows
from tests.fakes.adapter_files import marked_weights
from tests.fakes.scripted_answers import Answer, Script

NEEDS = ("policies", "data_dir", "episodes", "samples")
LOAD, UNLOAD = "/load_lora_adapter", "/unload_lora_adapter"
SHARED_HEAD = "a long head that every prompt shares " * 8


def write_adapter(scene: Scene, weights: bytes | None = None) -> tuple[str, str]:
    """A folder of an adapter in the gateway's data folder: its name and digest."""
    assert scene.gateway.data_dir is not None
    weights = marked_weights(weights or secrets.token_bytes(16))
    folder = f"fake-{secrets.token_hex(6)}"
    path = scene.gateway.data_dir / "adapters" / folder
    path.mkdir(parents=True)
    (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4}))
    (path / "adapter_model.safetensors").write_bytes(weights)
    return folder, hashlib.sha256(weights).hexdigest()


async def publish(scene: Scene, folder: str, digest: str, **more: Any) -> Answered:
    path = f"/v1/policies/{scene.gateway.model}/versions"
    body = {"folder": folder, "digest": digest, **more}
    return await scene.gateway.send("POST", path, body, key=scene.gateway.keys.trainer)


async def published(scene: Scene) -> tuple[int, str]:
    """A new version that is live: its number and digest."""
    folder, digest = write_adapter(scene)
    answered = await publish(scene, folder, digest)
    assert answered.status == 201, answered.raw
    return answered.json["version"], digest


async def policy(scene: Scene) -> Json:
    shown = (await scene.read("/v1/policies"))["data"]
    return next(one for one in shown if one["policy"] == scene.gateway.model)


async def loads(scene: Scene, contains: str, path: str = LOAD) -> list[str]:
    return [one.body["lora_name"] for one in await scene.engine.received(contains, path)]


async def greedy(scene: Scene, episode: Episode) -> tuple[list[int], list[float]]:
    """What the engine answers to one prompt, temperature as the policy has it: ids and log-probabilities."""
    shows: Json = {"logprobs": True, "return_token_ids": True}
    messages = [{"role": "user", "content": f"{SHARED_HEAD}{scene.tag}"}]
    answered = await scene.ask(episode, messages=messages, temperature=0, **shows)
    assert answered.status == 200, answered.raw
    choice = answered.json["choices"][0]
    return choice["token_ids"], [entry["logprob"] for entry in choice["logprobs"]["content"]]


@rule("after a swap the answers are the new version's, not the prefix cache's", case="C41", needs=NEEDS, alone=True)
async def no_stale_prefix(scene: Scene) -> None:
    await scene.engine.by_adapter(scene.tag)
    seen = []
    for _ in range(3):
        await published(scene)
        episode = await scene.open()
        seen.append(await greedy(scene, episode))
        assert await greedy(scene, await scene.open()) == seen[-1], "one version answers in one way"
    assert len({tuple(ids) for ids, _ in seen}) == 3, seen


@rule("the same as a fresh engine would answer", case="C41", needs=NEEDS, alone=True)
async def equals_a_fresh_engine(scene: Scene) -> None:
    await scene.engine.by_adapter(scene.tag)
    await published(scene)
    await greedy(scene, await scene.open())
    folder, digest = write_adapter(scene)
    assert (await publish(scene, folder, digest)).status == 201
    after = await greedy(scene, await scene.open())
    name, url = f"fresh-{scene.tag}", scene.engine.url
    assert scene.gateway.data_dir is not None
    load = {"lora_name": name, "lora_path": str(scene.gateway.data_dir / "adapters" / folder)}
    async with scene.engine.client.post(f"{url}/v1{LOAD}", json=load) as response:
        assert response.status == 200
    asked = (await scene.received())[-1].body
    async with scene.engine.client.post(f"{url}{CHAT.path}", json={**asked, "model": name}) as response:
        fresh = (await response.json())["choices"][0]
    assert after == (fresh["token_ids"], [entry["logprob"] for entry in fresh["logprobs"]["content"]])


@rule(
    "one load a version, none during 20 requests after it, all under its own name", case="C41", needs=NEEDS, alone=True
)
async def one_load(scene: Scene) -> None:
    version, digest = await published(scene)
    episode = await scene.open()
    assert episode.said["versions"][scene.gateway.model] == version
    for _ in range(20):
        answered = await scene.ask(episode)
        assert answered.headers["x-hone-version"] == str(version)
    names = {one.body["model"] for one in await scene.received()}
    assert len(names) == 1
    (name,) = names
    assert digest[:8] in name
    assert await loads(scene, name) == [name]


@rule("a version is told only after its load has succeeded", case="C41", needs=NEEDS, alone=True)
async def told_after_the_load(scene: Scene) -> None:
    before = (await policy(scene))["active"]
    folder, digest = write_adapter(scene)
    await scene.engine.settings(load_delay_s=3.0)
    try:
        publishing = asyncio.create_task(publish(scene, folder, digest))

        async def loading() -> bool:
            return bool(await loads(scene, digest[:8]))

        await scene.until(loading)
        assert (await policy(scene))["active"] == before
        episode = await scene.open()
        assert episode.said["versions"][scene.gateway.model] == before
        assert (await scene.ask(episode)).headers["x-hone-version"] == str(before)
        assert not publishing.done()
        answered = await publishing
    finally:
        await scene.engine.settings(load_delay_s=0.0)
    assert (answered.status, answered.json["state"]) == (201, "active"), answered.raw
    assert (await policy(scene))["active"] == answered.json["version"] > before


@rule(
    "a load that fails with {0} keeps the old version, and the next swap works",
    case="C41",
    needs=NEEDS,
    alone=True,
    each={"400": 400, "404": 404, "500": 500},
)
async def failing_load(scene: Scene, status: int) -> None:
    before, _ = await published(scene)
    folder, digest = write_adapter(scene)
    await scene.engine.settings(load_status=status)
    try:
        refused = await publish(scene, folder, digest)
    finally:
        await scene.engine.settings(load_status=200)
    assert refused.status == 409, refused.raw
    assert refused.json["error"]["message"]
    shown = await policy(scene)
    assert shown["active"] == before
    failed = next(one for one in shown["versions"] if one["digest"] == digest)
    assert failed["state"] == "failed"
    assert (await scene.ask(await scene.open())).headers["x-hone-version"] == str(before)
    assert (await published(scene))[0] > failed["version"], "a number is never used again"


@rule(
    "an adapter that the engine does not serve as it should fails the probe, and the old version stays",
    case="C41",
    needs=NEEDS,
    alone=True,
)
async def failing_probe(scene: Scene) -> None:
    before, _ = await published(scene)
    folder, digest = write_adapter(scene)
    point = {"prompt_ids": [1, 2], "token_id": 100, "logprob": -30.0, "previous": -0.5, "base": -0.5}
    answered = await publish(scene, folder, digest, probe={"points": [point], "noise": 0.01})
    assert answered.status == 409, answered.raw
    assert (await policy(scene))["active"] == before
    assert await loads(scene, digest[:8], UNLOAD) != []


@rule("an episode keeps the version it began with", needs=NEEDS, alone=True)
async def pinned(scene: Scene) -> None:
    first, _ = await published(scene)
    episode = await scene.open()
    await scene.ask(episode)
    second, _ = await published(scene)
    assert (await scene.ask(episode)).headers["x-hone-version"] == str(first)
    assert (await scene.ask(await scene.open())).headers["x-hone-version"] == str(second)
    samples = await scene.samples(episode)
    assert {span["version"] for sample in samples["samples"] for span in sample["spans"]} == {first}


@rule("a stream in flight goes on through a swap, under its own version", case="C41", needs=NEEDS, alone=True)
async def stream_through_a_swap(scene: Scene) -> None:
    first, _ = await published(scene)
    await scene.answers(Script(choices=(Answer(ids=(5, 6, 99)),)), gate="swap")
    episode = await scene.open()
    asking = asyncio.create_task(scene.ask(episode, stream=True))
    await scene.until(scene.received)
    await published(scene)
    await scene.release("swap")
    answered = await asking
    assert (answered.status, answered.headers["x-hone-version"]) == (200, str(first))
    assert CHAT.has_ended(answered)
    assert rows(await scene.samples(episode)) == [([1, 2, 5, 6, 99], [0, 0, 1, 1, 1])]


@rule("the same folder published again is the same version, and no second load", case="C41", needs=NEEDS, alone=True)
async def published_again(scene: Scene) -> None:
    version, digest = await published(scene)
    folder = next(one["folder"] for one in (await policy(scene))["versions"] if one["version"] == version)
    again = await publish(scene, folder, digest)
    assert (again.status, again.json["version"]) == (201, version)
    assert len(await loads(scene, folder)) == 1


@rule(
    "two swaps at once are two versions, each loaded once under a name of its own", case="C41", needs=NEEDS, alone=True
)
async def at_once(scene: Scene) -> None:
    adapters = [write_adapter(scene) for _ in range(2)]
    answers = await asyncio.gather(*(publish(scene, *adapter) for adapter in adapters))
    assert [answered.status for answered in answers] == [201, 201]
    assert len({answered.json["version"] for answered in answers}) == 2
    names = [await loads(scene, digest[:8]) for _, digest in adapters]
    assert all(len(each) == 1 for each in names)
    assert names[0] != names[1]


@rule("equal weights published twice never share a name", case="C41", needs=NEEDS, alone=True)
async def equal_weights(scene: Scene) -> None:
    weights = secrets.token_bytes(16)
    first, second = write_adapter(scene, weights), write_adapter(scene, weights)
    versions = [(await publish(scene, *adapter)).json["version"] for adapter in (first, second)]
    assert len(set(versions)) == 2
    names = await loads(scene, first[1][:8])
    assert len(set(names)) == len(names) == 2


NO_FOLDERS = ["../x", "a/b", "", "/etc", ".hidden", "no-such-folder", "a" * 600, "x\x00y"]


@rule("what is no folder under adapters/ is refused", case="C45", needs=NEEDS, alone=True)
async def wrong_folders(scene: Scene) -> None:
    _, digest = write_adapter(scene)
    before = [one["version"] for one in (await policy(scene))["versions"]]
    for folder in NO_FOLDERS:
        answered = await publish(scene, folder, digest)
        assert answered.status == 400, (folder, answered.status)
    assert [one["version"] for one in (await policy(scene))["versions"]] == before


@rule("a digest that is not the file's is refused", case="C45", needs=NEEDS, alone=True)
async def wrong_digest(scene: Scene) -> None:
    folder, digest = write_adapter(scene)
    other = hashlib.sha256(b"other").hexdigest()
    assert (await publish(scene, folder, other)).status == 409
    assert (await publish(scene, folder, "x")).status == 400
    assert (await publish(scene, folder, digest)).status == 201


@rule("a rollback is one request: later versions are withdrawn and their epoch refused", needs=NEEDS, alone=True)
async def rollback(scene: Scene) -> None:
    first, _ = await published(scene)
    episode = await scene.open()
    await scene.ask(episode)
    second, _ = await published(scene)
    late = await scene.open()
    assert (await scene.ask(late)).headers["x-hone-version"] == str(second)
    path, epoch = f"/v1/policies/{scene.gateway.model}/rollback", (await policy(scene))["epoch"]
    said = await scene.gateway.send("POST", path, {"version": first}, key=scene.gateway.keys.trainer)
    assert (said.status, said.json["version"], said.json["epoch"]) == (200, first, epoch + 1), said.raw
    assert (await scene.ask(late)).headers["x-hone-version"] == str(first)
    folder, digest = write_adapter(scene)
    refused = await publish(scene, folder, digest, epoch=epoch)
    assert refused.status == 409, refused.raw
    assert (await publish(scene, folder, digest, epoch=epoch + 1)).status == 201


@rule("an engine that lost its adapters gets them back", needs=NEEDS, alone=True)
async def lost_adapters(scene: Scene) -> None:
    version, digest = await published(scene)
    (name,) = await loads(scene, digest[:8])
    async with scene.engine.client.post(f"{scene.engine.url}/v1{UNLOAD}", json={"lora_name": name}) as response:
        assert response.status == 200

    async def back() -> bool:
        return name in await scene.engine.models()

    await scene.until(back)
    assert (await scene.ask(await scene.open())).headers["x-hone-version"] == str(version)
