"""What is counted: bounded labels, every instrument in the documentation, and real pages as they are scraped."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import aiohttp
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.gauges import address_of
from gateway.metrics import MAX_CHILDREN, NONE, OTHER, Metrics
from tests.fakes.gateway_process import gateway_process
from tests.fakes.gateways import PATIENCE_S, RunningGateway, running_gateway
from tests.fakes.scripted_engine import Script, ScriptedEngine
from tracker.types import Call, CallState, Choice, Reason, Scope

DOCUMENTED = Path(__file__).parents[2] / "docs" / "operations.md"
Sample = tuple[str, frozenset[tuple[str, str]]]


def samples(page: str) -> dict[Sample, float]:
    """Every number on a page by its name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def named(page: str, name: str, **labels: str) -> float:
    """The sum of the numbers of this name which have these labels."""
    return sum(value for (found, told), value in samples(page).items() if found == name and labels.items() <= set(told))


def call(**fields: object) -> Call:
    told = {
        "call_id": "c",
        "episode_id": "e",
        "index": 0,
        "policy": "solver",
        "state": CallState.COMPLETED,
        "prompt_ids": (1, 2, 3),
        "choices": (Choice(index=0, sampled_ids=(4, 5)),),
        "started_ms": 1_000,
        "ended_ms": 3_500,
        **fields,
    }
    return Call(**told)  # pyright: ignore[reportArgumentType]


def test_a_call_is_counted_with_its_tokens_and_its_time() -> None:
    metrics = Metrics()
    metrics.ended(call())
    metrics.ended(call(state=CallState.ABORTED, reason=Reason.CLIENT_GONE, prompt_ids=()))
    metrics.ended(call(choices=(Choice(index=0, reason=Reason.NO_IDS),)))
    page = metrics.page().decode()
    assert named(page, "hone_calls_total", policy="solver", state="completed", reason=NONE) == 1
    assert named(page, "hone_calls_total", state="aborted", reason="client_gone") == 1
    assert named(page, "hone_calls_total", state="completed", reason="no_ids") == 1
    assert named(page, "hone_prompt_tokens_total", policy="solver") == 6
    assert named(page, "hone_sampled_tokens_total", policy="solver") == 2
    assert named(page, "hone_call_seconds_sum", policy="solver") == 7.5


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy")), max_size=50))
def test_what_is_counted_under_each_label_adds_up_to_all_that_was(asked: list[tuple[str, str]]) -> None:
    metrics = Metrics()
    for route, dialect in asked:
        metrics.answered(route, "POST", dialect, 200)
    page = metrics.page().decode()
    assert named(page, "hone_requests_total") == len(asked)
    assert named(page, "hone_requests_total", route="a") == sum(route == "a" for route, _ in asked)


def test_an_instrument_has_no_more_children_than_is_sensible() -> None:
    metrics = Metrics()
    for number in range(MAX_CHILDREN + 500):
        metrics.swaps.of(f"policy-{number}", "published").inc()
    page = metrics.page().decode()
    assert named(page, "hone_swaps_total") == MAX_CHILDREN + 500
    assert named(page, "hone_swaps_total", policy=OTHER) == 500


def test_what_happens_now_is_shown_as_it_is() -> None:
    metrics = Metrics()
    metrics.now.num_calls, metrics.now.num_streams, metrics.now.num_held = 5, 3, 1
    metrics.show_now()
    page = metrics.page().decode()
    assert [named(page, f"hone_{it}") for it in ("calls_in_flight", "streams_in_flight", "held_answers")] == [5, 3, 1]


def test_one_of_the_workers_that_share_a_folder_looks_once_in_an_interval(tmp_path: Path) -> None:
    one, other = Metrics(tmp_path), Metrics(tmp_path)
    assert [worker.is_due(15, 1_000.0) for worker in (one, other, one)] == [True, False, False]
    assert [worker.is_due(15, 1_014.0) for worker in (other, one)] == [True, False]
    assert one.is_due(15, 10.0)  # a clock that was set back keeps nobody from looking
    alone = Metrics()
    assert alone.is_due(15, 1_000.0)
    assert alone.is_due(15, 1_000.0)


def test_no_label_of_an_engine_holds_what_stands_before_its_host() -> None:
    assert address_of("https://user:secret@gpu/") == "gpu"


def test_every_instrument_is_documented_and_nothing_else_is() -> None:
    section = re.search(r"^## Metrics$(.*?)^## ", DOCUMENTED.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert section is not None, "docs/operations.md has a section Metrics"
    rows = re.findall(r"^\| `(hone_\w+)` \| (\w+) \| ([^|]*) \| ([^|]+) \|$", section[1], re.MULTILINE)
    written = {(name, kind, labels.replace("`", "").strip(), words.strip()) for name, kind, labels, words in rows}
    real = {(it.name, it.kind, ", ".join(it.labels), it.words) for it in Metrics().listed}
    assert written == real


@pytest.mark.slow
async def test_a_scrape_tells_of_calls_streams_refusals_engines_and_sql(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    episode = await gateway.open()
    assert (await gateway.chat(episode)).status_code == 200
    body = {"model": "solver", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    session = {"Authorization": f"Bearer {episode['api_key']}"}
    assert (await gateway.admin.post("/v1/chat/completions", headers=session, json=body)).status_code == 200
    engine.script(Script(status=500))
    assert (await gateway.chat(episode)).status_code == 502
    finished = await gateway.admin.post(f"/v1/episodes/{episode['episode_id']}/finish", json={"status": "ok"})
    assert finished.is_success
    digest = gateway.adapter("solver-a")
    published = await gateway.publish("solver-a", digest)
    async with httpx.AsyncClient(base_url=gateway.url) as nobody:
        assert (await nobody.post("/v1/chat/completions", json=body)).status_code == 401
        assert (await nobody.get("/v1/episodes")).status_code == 401
        async with asyncio.timeout(PATIENCE_S):
            page = ""
            while not (named(page, "hone_calls_excluded_total") and named(page, "hone_overview_timestamp_seconds")):
                await asyncio.sleep(0.02)
                page = (await nobody.get("/metrics")).text
    assert named(page, "hone_requests_total", route="/v1/chat/completions", dialect="chat", status="200") == 2
    assert named(page, "hone_requests_total", route="/v1/chat/completions", status="502") == 1
    assert named(page, "hone_calls_total", policy="solver", state="failed", reason="upstream_failed") == 1
    assert named(page, "hone_calls_excluded_total", reason="upstream_failed") == 1
    assert named(page, "hone_requests_total", route="/v1/episodes", method="POST", status="201") == 1
    assert named(page, "hone_refusals_total", status="401", code="missing_api_key") == 2
    assert named(page, "hone_refusals_total", status="502") == 1
    assert named(page, "hone_calls_total", policy="solver", state="completed", reason="none") == 2
    assert named(page, "hone_sampled_tokens_total", policy="solver") > 0
    assert named(page, "hone_first_token_seconds_count", dialect="chat") == 1
    assert named(page, "hone_redis_seconds_count", operation="begin") == 3
    assert named(page, "hone_redis_seconds_count", operation="end") == 3
    assert named(page, "hone_swaps_total", policy="solver") == 1
    assert named(page, "hone_swaps_total", policy="solver", result="published") == (published.status_code == 201)
    assert named(page, "hone_engine_state", engine=engine.url.removeprefix("http://"), state="ready") == 1
    assert named(page, "hone_part_ready", part="redis") == 1
    assert named(page, "hone_calls_in_flight") == 0
    assert episode["episode_id"] not in page


@pytest.mark.slow
async def test_off_loopback_a_scrape_needs_the_scope_read_and_readiness_keeps_its_words(
    engine: ScriptedEngine, tmp_path: Path, redis_url: str
) -> None:
    env = {"HONE_REDIS_URL": redis_url, "HONE_HOST": "0.0.0.0"}
    async with (
        running_gateway(engine, tmp_path, env) as gateway,
        await gateway.client(Scope.AGENT) as agent,
        httpx.AsyncClient(base_url=gateway.url) as nobody,
    ):
        assert (await nobody.get("/metrics")).status_code == 401
        assert (await agent.get("/metrics")).status_code == 403
        assert "hone_requests_total" in (await gateway.admin.get("/metrics")).text
        told = (await nobody.get("/health/ready")).json()
        assert told["status"] == "ready"
        assert set(told) == {"status", "parts"}
        assert all(part == {"ready": True} for part in told["parts"].values())
        full = (await gateway.admin.get("/health/ready")).json()
        assert engine.url in full["parts"]["engines"]["detail"]


@pytest.mark.slow
async def test_a_scrape_of_one_worker_tells_of_all(tmp_path: Path) -> None:
    async with gateway_process(tmp_path / "data", HONE_WORKERS="2") as gateway:
        episode = await gateway.open_episode()
        for _ in range(12):  # each on a connection of its own, so that both workers may get some
            async with aiohttp.ClientSession() as client:
                headers = {"Authorization": f"Bearer {episode.api_key}"}
                body = {"model": "solver", "messages": [{"role": "user", "content": "hi"}]}
                async with client.post(f"{gateway.url}/v1/chat/completions", headers=headers, json=body) as answer:
                    assert answer.status == 200
        pages: list[str] = []
        for _ in range(4):
            async with aiohttp.ClientSession() as client, client.get(f"{gateway.url}/metrics") as answer:
                pages.append(await answer.text())
        assert [named(page, "hone_calls_total", state="completed") for page in pages] == [12.0] * 4
        assert [named(page, "hone_call_seconds_count") for page in pages] == [12.0] * 4
