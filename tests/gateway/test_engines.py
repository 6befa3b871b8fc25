"""The engines behind the gateway: who is fit, and under which name a version is asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.engine_api import EngineApi, ModelCard
from gateway.engines import EnginePool, Fitness, Serving, resolve_bases
from tests.fakes.scripted_engine import ScriptedEngine
from tracker.errors import SettingsError, Unavailable, UpstreamFailed
from tracker.settings import PolicySettings

SOLVER = PolicySettings(name="solver", model="/models/base")
CHECKER = PolicySettings(name="checker", model="other")
ADAPTER = Serving(policy="solver", version=1, name="solver@1-abcdef01", path="/data/adapters/solver@1-abcdef01")
BARE = Serving(policy="solver", version=0)


@pytest.fixture
async def api() -> AsyncIterator[EngineApi]:
    async with httpx.AsyncClient() as http:
        yield EngineApi(http, "engine-key")


def test_a_base_is_found_by_name_by_path_or_because_it_is_the_only_one() -> None:
    cards = [ModelCard(id="b", root="/models/base"), ModelCard(id="other"), ModelCard(id="a@1-0", parent="b")]
    assert resolve_bases(cards, [SOLVER, CHECKER]) == {"solver": "b", "checker": "other"}
    assert resolve_bases([ModelCard(id="x", root="/elsewhere")], [SOLVER]) == {"solver": "x"}
    assert resolve_bases([], [SOLVER]) == {"solver": "/models/base"}
    assert resolve_bases([ModelCard(id="other")], [SOLVER, CHECKER]) == {"checker": "other"}
    with pytest.raises(SettingsError, match="the engine serves x, y"):
        resolve_bases([ModelCard(id="x"), ModelCard(id="y")], [SOLVER])


async def test_calls_spread_over_engines_and_stay_where_their_episode_is(api: EngineApi) -> None:
    async with ScriptedEngine() as one, ScriptedEngine() as two:
        pool = EnginePool([one.url, two.url], [SOLVER], api)
        await pool.look([])
        first = await pool.place(BARE, None)
        pool.begin(first)
        second = await pool.place(BARE, None)
        assert {first.engine, second.engine} == {one.url, two.url}
        assert await pool.place(BARE, first.engine) == first
        assert pool.num_in_flight_at(first.engine) == 1
        pool.end(first)
        assert pool.num_in_flight_at(first.engine) == 0
        assert first.model == "base"
        assert {seen.headers["Authorization"] for seen in one.received} == {"Bearer engine-key"}


async def test_calls_that_are_on_their_way_are_counted_where_they_go(api: EngineApi) -> None:
    async with ScriptedEngine() as one, ScriptedEngine() as two:
        pool = EnginePool([one.url, two.url], [SOLVER], api)
        await pool.look([])
        pool.expect(one.url)
        assert [pool.candidates("solver")[0] for _ in range(3)] == [two.url] * 3
        assert pool.num_in_flight_at(one.url) == 0
        pool.expect(one.url, -1)
        assert pool.candidates("solver")[0] == one.url


async def test_an_episode_moves_when_its_engine_is_down(api: EngineApi) -> None:
    async with ScriptedEngine() as two:
        async with ScriptedEngine() as one:
            pool = EnginePool([one.url, two.url], [SOLVER], api)
            await pool.look([])
            placed = await pool.place(BARE, one.url)
            assert placed.engine == one.url
        await pool.look([])
        assert [state.fitness for state in pool.states()] == [Fitness.DOWN, Fitness.READY]
        assert (await pool.place(BARE, one.url)).engine == two.url


async def test_an_engine_that_is_down_is_asked_once_more_before_a_call_is_given_up(api: EngineApi) -> None:
    async with ScriptedEngine() as engine:
        port = int(engine.url.rpartition(":")[2])
        pool = EnginePool([engine.url], [SOLVER], api)
    await pool.look([ADAPTER])
    with pytest.raises(UpstreamFailed):
        await pool.place(BARE, None)
    async with ScriptedEngine(port=port) as engine:
        placed = await pool.place(ADAPTER, None)
        assert (placed.model, engine.models[ADAPTER.name]["root"]) == (ADAPTER.name, ADAPTER.path)


async def test_an_adapter_under_our_name_with_another_path_is_no_success(api: EngineApi) -> None:
    async with ScriptedEngine() as engine:
        pool = EnginePool([engine.url], [SOLVER], api)
        await pool.look([])
        engine.models[ADAPTER.name] = {"id": ADAPTER.name, "root": "/elsewhere", "parent": "base"}
        engine.load_status = 400
        with pytest.raises(UpstreamFailed, match="another path"):
            await pool.load(engine.url, ADAPTER)


async def test_engines_that_are_all_refused_give_no_place(api: EngineApi) -> None:
    async with ScriptedEngine() as engine:
        engine.processed_logprobs = False
        pool = EnginePool([engine.url], [SOLVER], api)
        await pool.look([])
        assert [state.fitness for state in pool.states()] == [Fitness.REFUSED]
        with pytest.raises(Unavailable, match="processed_logprobs"):
            pool.candidates("solver")
