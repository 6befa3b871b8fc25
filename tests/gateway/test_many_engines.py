"""Several engines behind one gateway: episodes stay where they are, load is spread, and what dies is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.engine_api import EngineApi
from tests.fakes.gateway_process import Episode, gateway_process
from tests.fakes.gateways import RunningGateway, running_gateway
from tests.fakes.scripted_engine import Answer, Script, ScriptedEngine

pytestmark = pytest.mark.slow

Json = dict[str, Any]
NEVER = {"HONE_POLL_INTERVAL_S": "600"}
"""Whatever happens to an engine is not seen by a look, only by calls."""


@asynccontextmanager
async def engines(num_engines: int) -> AsyncIterator[list[ScriptedEngine]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(ScriptedEngine()) for _ in range(num_engines)]


@asynccontextmanager
async def before(
    several: list[ScriptedEngine], folder: Path, redis_url: str, **env: str
) -> AsyncIterator[RunningGateway]:
    urls = ",".join(engine.url for engine in several)
    async with running_gateway(urls, folder, {"HONE_REDIS_URL": redis_url, **env}) as gateway:
        yield gateway


async def engines_of(gateway: RunningGateway, episode: Json) -> list[str]:
    """Where each call of an episode was answered, in order."""
    shown = (await gateway.admin.get(f"/v1/episodes/{episode['episode_id']}/timeline")).json()
    return [call["engine"] for call in shown["calls"]]


async def states(gateway: RunningGateway) -> dict[str, Json]:
    return {state["url"]: state for state in (await gateway.admin.get("/v1/engines")).json()["data"]}


async def until_fit(gateway: RunningGateway, engine: ScriptedEngine, fitness: str) -> Json:
    async with asyncio.timeout(60):
        while (state := (await states(gateway))[engine.url])["fitness"] != fitness:
            await asyncio.sleep(0.02)
    return state


async def test_episodes_are_spread_and_each_stays_where_it_is(tmp_path: Path, redis_url: str) -> None:
    async with engines(3) as several, before(several, tmp_path, redis_url) as gateway:
        homes: Counter[str] = Counter()
        episodes = [await gateway.open() for _ in range(9)]
        for _ in range(3):
            for episode in episodes:
                assert (await gateway.chat(episode)).status_code == 200
        for episode in episodes:
            (home,) = set(await engines_of(gateway, episode))
            homes[home] += 1
        assert homes == {engine.url: 3 for engine in several}


async def test_episodes_that_begin_at_once_are_spread_too(tmp_path: Path, redis_url: str) -> None:
    async with engines(3) as several, before(several, tmp_path, redis_url) as gateway:
        gate = asyncio.Event()
        for engine in several:
            engine.when(lambda _: True, Script(gate=gate))
        episodes = [await gateway.open() for _ in range(12)]
        calls = [asyncio.create_task(gateway.chat(episode)) for episode in episodes]
        async with asyncio.timeout(60):
            while sum(len(engine.calls) for engine in several) < len(calls):
                await asyncio.sleep(0.01)
        gate.set()
        assert {answer.status_code for answer in await asyncio.gather(*calls)} == {200}
        assert {len(engine.calls) for engine in several} == {4}


async def test_calls_that_begin_an_episode_at_once_go_to_one_engine(tmp_path: Path, redis_url: str) -> None:
    async with engines(3) as several, before(several, tmp_path, redis_url) as gateway:
        episode = await gateway.open()
        answers = await asyncio.gather(*(gateway.chat(episode) for _ in range(6)))
        assert {answer.status_code for answer in answers} == {200}
        assert len(set(await engines_of(gateway, episode))) == 1


async def test_a_busy_engine_gets_no_new_episodes(tmp_path: Path, redis_url: str) -> None:
    async with engines(2) as (one, two), before([one, two], tmp_path, redis_url) as gateway:
        gate = asyncio.Event()
        for engine in (one, two):
            engine.script(Script(gate=gate))
        first = asyncio.create_task(gateway.chat(await gateway.open()))
        async with asyncio.timeout(60):
            while not (one.calls or two.calls):
                await asyncio.sleep(0.01)
        busy, free = (one, two) if one.calls else (two, one)
        free.script()
        second = asyncio.create_task(gateway.chat(await gateway.open()))
        async with asyncio.timeout(60):
            while not free.calls:
                await asyncio.sleep(0.01)
        gate.set()
        await asyncio.gather(first, second)
        assert len(busy.calls) == 1


async def test_a_lost_engines_episode_moves_within_the_call_and_stays_where_it_went(
    tmp_path: Path, redis_url: str
) -> None:
    async with engines(2) as several, before(several, tmp_path, redis_url, **NEVER) as gateway:
        episode = await gateway.open()
        await gateway.chat(episode)
        (home,) = await engines_of(gateway, episode)
        lost, other = several if home == several[0].url else several[::-1]
        port = int(lost.url.rpartition(":")[2])
        await lost.stop()
        assert (await gateway.chat(episode)).status_code == 200, "the connection was refused, the other engine asked"
        assert (await states(gateway))[lost.url]["fitness"] == "down"
        async with ScriptedEngine(port=port):
            assert (await gateway.chat(episode)).status_code == 200
            assert await engines_of(gateway, episode) == [home, other.url, other.url]
            samples = (await gateway.admin.get(f"/v1/episodes/{episode['episode_id']}/samples")).json()
            assert samples["excluded"] == [], "nothing of the call was lost"


async def test_an_engine_that_comes_back_gets_the_versions_before_it_gets_calls(tmp_path: Path, redis_url: str) -> None:
    async with engines(2) as (one, two), before([one, two], tmp_path, redis_url) as gateway:
        digest = gateway.adapter("mine")
        assert (await gateway.publish("mine", digest)).status_code == 201
        name = f"solver@1-{digest[:8]}"
        assert name in one.models
        assert name in two.models
        port = int(one.url.rpartition(":")[2])
        await one.stop()
        await until_fit(gateway, one, "down")
        assert {(await gateway.chat(await gateway.open())).status_code for _ in range(4)} == {200}
        async with ScriptedEngine(port=port) as back:
            await until_fit(gateway, back, "ready")
            assert name in back.models
            while not back.calls:
                assert (await gateway.chat(await gateway.open())).status_code == 200
            assert {str(call.body["model"]) for call in back.calls} == {name}
            paths = [seen.path for seen in back.received]
            assert paths.index("/v1/load_lora_adapter") < paths.index("/v1/chat/completions")


async def test_an_engine_that_forgot_its_adapters_is_reminded_within_the_call(tmp_path: Path, redis_url: str) -> None:
    async with engines(1) as (one,), before([one], tmp_path, redis_url, **NEVER) as gateway:
        digest = gateway.adapter("mine")
        await gateway.publish("mine", digest)
        name = f"solver@1-{digest[:8]}"
        episode = await gateway.open()
        await gateway.chat(episode)
        del one.models[name]
        assert (await gateway.chat(episode)).status_code == 200
        assert name in one.models
        one.when(lambda seen: True, Script(status=404, error={"message": "no such thing", "code": 404}))
        assert (await gateway.chat(episode)).status_code == 404, "another 404 is the engine's word"


@pytest.mark.parametrize("streams", [False, True])
async def test_a_connection_that_breaks_before_the_answer_is_tried_on_another_engine_once(
    tmp_path: Path, redis_url: str, streams: bool
) -> None:
    async with engines(3) as several, before(several, tmp_path, redis_url) as gateway:
        body = {"model": "solver", "messages": [{"role": "user", "content": "hi"}], "stream": streams}
        episode = await gateway.open()
        headers = {"Authorization": f"Bearer {episode['api_key']}"}

        async def ask() -> Any:
            return await gateway.admin.post("/v1/chat/completions", headers=headers, json=body)

        await ask()
        (home,) = await engines_of(gateway, episode)
        first = next(engine for engine in several if engine.url == home)
        others = [engine for engine in several if engine is not first]
        first.script(Script(reset_after=0))
        answer = await ask()
        assert answer.status_code == 200
        assert "error" not in answer.text
        assert len(await engines_of(gateway, episode)) == 2
        assert (await engines_of(gateway, episode))[1] != home
        for engine in several:
            engine.script(Script(reset_after=0), Script(reset_after=0))
        num_before = sum(len(engine.calls) for engine in several)
        answer = await ask()
        assert answer.status_code == 502
        assert sum(len(engine.calls) for engine in several) == num_before + 2, "not handed through all engines"
        assert others


async def test_an_answer_that_has_begun_is_not_asked_for_again(tmp_path: Path, redis_url: str) -> None:
    async with engines(2) as several, before(several, tmp_path, redis_url) as gateway:
        for engine in several:
            engine.script(Script(choices=(Answer(ids=(5, 6, 7, 99)),), reset_after=2))
        episode = await gateway.open()
        headers = {"Authorization": f"Bearer {episode['api_key']}"}
        body = {"model": "solver", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        answer = await gateway.admin.post("/v1/chat/completions", headers=headers, json=body)
        assert answer.status_code == 200
        assert answer.text.count("error") >= 1
        assert sum(len(engine.calls) for engine in several) == 1


async def test_a_version_is_proved_on_every_engine(tmp_path: Path, redis_url: str) -> None:
    async with engines(2) as (one, two), before([one, two], tmp_path, redis_url) as gateway:
        two.serves_only = "base"
        digest = gateway.adapter("mine")
        answer = await gateway.publish("mine", digest, probe=await probe_of(one, f"solver@1-{digest[:8]}"))
        assert answer.status_code == 409
        assert two.url in answer.json()["error"]["message"]
        assert list(one.models) == list(two.models) == ["base"], "taken out of the good one too"
        assert (await gateway.admin.get("/v1/policies")).json()["data"][0]["active"] == 0


async def test_an_engine_that_comes_back_without_proving_its_versions_gets_no_calls(
    tmp_path: Path, redis_url: str
) -> None:
    async with engines(2) as (one, two), before([one, two], tmp_path, redis_url) as gateway:
        digest = gateway.adapter("mine")
        answer = await gateway.publish("mine", digest, probe=await probe_of(one, f"solver@1-{digest[:8]}"))
        assert answer.status_code == 201, answer.text
        port = int(one.url.rpartition(":")[2])
        await one.stop()
        await until_fit(gateway, one, "down")
        async with ScriptedEngine(port=port) as back:
            back.serves_only = "base"
            async with asyncio.timeout(60):
                while "does not serve it" not in (await states(gateway))[back.url]["detail"]:
                    await asyncio.sleep(0.02)
            for _ in range(4):
                assert (await gateway.chat(await gateway.open())).status_code == 200
            assert back.calls == []
            back.serves_only = None
            await until_fit(gateway, back, "ready")


async def probe_of(engine: ScriptedEngine, name: str) -> Json:
    """What a trainer would send of a version that the engine scores as its name says."""
    points: list[Json] = []
    async with httpx.AsyncClient() as http:
        api = EngineApi(http, None)
        engine.models[name] = {"id": name}
        own, base = [await api.score(engine.url, model, [1, 2], 1.0) for model in (name, "base")]
        del engine.models[name]
    for token in own:
        values = {"logprob": own[token], "previous": base[token], "base": base[token]}
        points.append({"prompt_ids": [1, 2], "token_id": int(token.removeprefix("token_id:")), **values})
    return {"points": points, "noise": 0.01}


async def test_engines_with_other_base_models_get_only_their_policies(tmp_path: Path, redis_url: str) -> None:
    async with ScriptedEngine(models=("small",)) as one, ScriptedEngine(models=("large",)) as two:
        policies = {"HONE_POLICIES": "solver=small,judge=large"}
        async with before([one, two], tmp_path, redis_url, **policies) as gateway:
            digest = gateway.adapter("mine")
            assert (await gateway.publish("mine", digest)).status_code == 201
            assert f"solver@1-{digest[:8]}" in one.models
            assert list(two.models) == ["large"]
            episode = await gateway.open()
            headers = {"Authorization": f"Bearer {episode['api_key']}"}
            for _ in range(3):
                for model in ("solver", "judge"):
                    body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
                    answer = await gateway.admin.post("/v1/chat/completions", headers=headers, json=body)
                    assert answer.status_code == 200, answer.text
            assert {str(call.body["model"]) for call in one.calls} == {f"solver@1-{digest[:8]}"}
            assert {str(call.body["model"]) for call in two.calls} == {"large"}


async def test_a_killed_engine_process_costs_only_the_answers_that_had_begun(tmp_path: Path, redis_url: str) -> None:
    env = {"HONE_REDIS_URL": redis_url, **NEVER}
    async with AsyncExitStack() as stack:
        dying, process = await stack.enter_async_context(engine_process())
        living = await stack.enter_async_context(ScriptedEngine())
        async with running_gateway(f"{dying},{living.url}", tmp_path, env) as gateway:
            episodes = [await gateway.open() for _ in range(8)]
            await asyncio.gather(*(gateway.chat(episode) for episode in episodes))
            homes = [(await engines_of(gateway, episode))[0] for episode in episodes]
            assert set(homes) == {dying, living.url}
            process.send_signal(signal.SIGKILL)
            await process.wait()
            answers = await asyncio.gather(*(gateway.chat(episode) for episode in episodes for _ in range(3)))
            assert {answer.status_code for answer in answers} == {200}
            for episode in episodes:
                assert set((await engines_of(gateway, episode))[1:]) == {living.url}


@asynccontextmanager
async def engine_process() -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.fakes.scripted_engine", stdout=asyncio.subprocess.PIPE, env=dict(os.environ)
    )
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().strip(), process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_all_workers_keep_an_episode_on_its_engine(tmp_path: Path) -> None:
    async with engines(2) as several:
        urls = ",".join(engine.url for engine in several)
        async with gateway_process(tmp_path / "data", HONE_ENGINES=urls, HONE_WORKERS="2") as gateway:
            episodes = [await gateway.open_episode(f"task {number}") for number in range(6)]
            hello = [{"role": "user", "content": "hi"}]

            async def ask(episode: Episode) -> int:
                body = {"messages": hello, "user": episode.episode_id}
                return (await gateway.chat(episode, body, connection="close")).status

            for _ in range(8):
                statuses = await asyncio.gather(*(ask(episode) for episode in episodes))
                assert set(statuses) <= {200, 503}, "a store that is slow refuses at once"
            assert sum(len(engine.calls) for engine in several) > 20
            homes = [{str(call.body["user"]) for call in engine.calls} for engine in several]
            assert not homes[0] & homes[1]
            assert all(homes)
