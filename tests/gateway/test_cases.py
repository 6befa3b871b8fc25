"""Cases from the field (`cases.md`), against `hone gateway` as users start it, over HTTP alone.

Every test ends with: and the gateway still answers the next ordinary call.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.fakes.gateway_process import HI, Episode, GatewayProcess, gateway_process
from tests.fakes.running import until
from tests.fakes.scripted_engine import Answer, Received, Script

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
END, SEP = 99, 98
STREAM = {"stream": True}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def process(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayProcess]:
    data_dir: Path = tmp_path_factory.mktemp("cases") / "data"
    async with gateway_process(data_dir) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(process: GatewayProcess) -> AsyncIterator[GatewayProcess]:
    """The gateway, which must answer an ordinary call after whatever the test did to it."""
    yield process
    async with asyncio.timeout(5):
        episode = await process.open_episode(task="ordinary")
        answered = await process.chat(episode)
        assert answered.status == 200
        assert (await process.samples(episode))["excluded"] == []


def turn(prompt: list[int], sampled: list[int], logprobs: list[float] | None = None, finish: str = "stop") -> Script:
    return Script(prompt_ids=prompt, choices=(Answer(ids=sampled, logprobs=logprobs, finish_reason=finish),))


def rows(samples: Any) -> list[tuple[list[int], list[int]]]:
    """(ids, mask) of each row, in order."""
    return sorted((sample["input_ids"], sample["loss_mask"]) for sample in samples["samples"])


def num_trained(samples: Any) -> int:
    return sum(sum(sample["loss_mask"]) for sample in samples["samples"])


async def only_call(gateway: GatewayProcess, episode: Episode) -> dict[str, Any]:
    """The episode's one call, once it is recorded."""
    async with asyncio.timeout(5):
        while not (calls := await gateway.calls(episode)):
            await asyncio.sleep(0.02)
    (call,) = calls
    return call


# C04: fields outside the minimal schema

SDK_BODY: dict[str, Any] = {
    "store": True,
    "metadata": {"a": "b"},
    "parallel_tool_calls": True,
    "tool_choice": None,
    "max_tokens": None,
    "max_completion_tokens": 7,
    "user": "x",
    "messages": [{**HI, "name": "n", "traceId": "t"}],
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}


@pytest.mark.parametrize("more", [{}, {"tools": [TOOL]}])
async def test_c04_fields_that_real_sdks_send_are_no_error(gateway: GatewayProcess, more: dict[str, Any]) -> None:
    episode = await gateway.open_episode()
    answered = await gateway.chat(episode, {**SDK_BODY, **more})
    assert answered.status == 200
    sent = gateway.engine.calls[-1].body
    assert sent.get("max_completion_tokens") == sent.get("max_tokens") == 7
    assert sent["user"] == "x"
    assert "tool_choice" not in sent


# C10: upstream failures


async def test_c10_a_503_before_any_chunk_is_a_503(gateway: GatewayProcess) -> None:
    episode = await gateway.open_episode()
    gateway.engine.script(Script(status=503))
    answered = await gateway.chat(episode, STREAM)
    assert answered.status == 503
    assert answered.headers["content-type"] == "application/json"
    assert "error" in json.loads(answered.raw)


FAILURES = [
    Script(choices=(Answer(ids=(5, 6, END)),), reset_after=2),
    Script(choices=(Answer(ids=(5, 6, END)),), error_after=2),
    Script(choices=(Answer(ids=(5, 6, END)),), close_after=2),
]


@pytest.mark.parametrize("script", FAILURES)
async def test_c10_a_stream_that_breaks_ends_in_one_error_event(gateway: GatewayProcess, script: Script) -> None:
    episode = await gateway.open_episode()
    gateway.engine.script(script)
    started_s = time.monotonic()
    answered = await gateway.chat(episode, STREAM)
    assert time.monotonic() - started_s < 1
    *chunks, last = answered.events
    assert len(chunks) == 2
    assert set(json.loads(last)) == {"error"}
    assert all(json.loads(chunk)["choices"][0]["finish_reason"] is None for chunk in chunks)
    call = await only_call(gateway, episode)
    assert (call["state"], call["reason"]) == ("failed", "upstream_failed")
    assert (await gateway.chat(episode)).status == 200
    samples = await gateway.samples(episode)
    assert [excluded["reason"] for excluded in samples["excluded"]] == ["upstream_failed"]
    assert {span["call_id"] for sample in samples["samples"] for span in sample["spans"]} == {
        one["call_id"] for one in await gateway.calls(episode) if one["state"] == "completed"
    }


# C11: the client goes away

LEAVING = {
    "whole": ({}, Script(delay_s=20), 0),
    "stream before its first chunk": (STREAM, Script(delay_s=20), 0),
    "stream after headers": (STREAM, Script(delay_s=20, headers_first=True), 0),
    "stream after three chunks": (STREAM, Script(choices=(Answer(ids=(5, 6, 7, 8, END)),), hang_after=3), 3),
}


async def leave(
    gateway: GatewayProcess, episode: Episode, body: dict[str, Any], num_chunks: int, stay_s: float
) -> None:
    """Ask, read so many chunks, stay a while and close the connection."""
    async with aiohttp.ClientSession() as client:
        asking = client.post(
            f"{gateway.url}/v1/chat/completions",
            json={"model": "solver", "messages": [HI], **body},
            headers={"Authorization": f"Bearer {episode.api_key}"},
        )
        try:
            async with asyncio.timeout(stay_s):
                async with asking as response:
                    seen = b""
                    while not num_chunks or seen.count(b"\n\n") < num_chunks:
                        seen += await response.content.readany()
        except TimeoutError:
            assert not num_chunks


@pytest.mark.parametrize("case", LEAVING)
async def test_c11_a_client_that_leaves_stops_the_engine(gateway: GatewayProcess, case: str) -> None:
    body, script, num_chunks = LEAVING[case]
    episode = await gateway.open_episode()
    before = len(gateway.engine.calls)
    gateway.engine.script(script)
    await leave(gateway, episode, body, num_chunks, 1.0)
    await until(lambda: len(gateway.engine.calls) > before)
    await asyncio.wait_for(gateway.engine.calls[before].disconnected.wait(), 2)
    call = await only_call(gateway, episode)
    assert (call["state"], call["reason"]) == ("aborted", "client_gone")
    assert num_trained(await gateway.samples(episode)) == 0


async def test_c11_fifty_clients_that_leave_hold_nothing_up(gateway: GatewayProcess) -> None:
    episode = await gateway.open_episode()
    before = len(gateway.engine.calls)
    gateway.engine.script(*[Script(delay_s=20)] * 50)
    await asyncio.gather(*(leave(gateway, episode, STREAM if k % 2 else {}, 0, 1.0) for k in range(50)))
    received = gateway.engine.calls[before:]
    assert len(received) == 50
    await asyncio.wait_for(asyncio.gather(*(one.disconnected.wait() for one in received)), 3)
    started_s = time.monotonic()
    assert (await gateway.chat(episode)).status == 200
    assert time.monotonic() - started_s < 1


# C13: token ids that are missing or disagree

BROKEN = {
    "ids_usage_mismatch": Script(choices=(Answer(ids=(5, 6)),), completion_tokens=5),
    "no_ids": Script(choices=(Answer(ids=None, texts=("a", "b"), logprobs=(-1.0, -1.0)),)),
    "no_prompt_ids": Script(prompt_ids=None),
    "no_prompt_ids ": Script(prompt_ids=()),
    "ids_logprobs_mismatch": Script(choices=(Answer(ids=(5, 6, 7, END), logprobs=(-1.0, -1.0, -1.0)),)),
    "bad_logprob": Script(choices=(Answer(ids=(5, END), logprobs=(-1.0, None)),)),
    "bad_logprob ": Script(choices=(Answer(ids=(5, END), logprobs=(-1.0, -9999.0)),)),
    "bad_logprob  ": Script(choices=(Answer(ids=(5, END), logprobs=(-1.0, float("nan"))),)),
}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("reason", BROKEN)
async def test_c13_a_call_with_broken_ids_is_served_and_not_trained(
    gateway: GatewayProcess, reason: str, streams: bool
) -> None:
    episode = await gateway.open_episode()
    gateway.engine.script(BROKEN[reason])
    answered = await gateway.chat(episode, {"stream": streams})
    assert answered.status == 200
    if streams:
        assert answered.events[-1] == b"[DONE]"
    await gateway.reward(episode, 1)
    samples = await gateway.samples(episode)
    assert (num_trained(samples), samples["samples"], samples["num_calls"]) == (0, [], 1)
    assert [excluded["reason"] for excluded in samples["excluded"]] == [reason.strip()]
    told = await gateway.ask("GET", f"/v1/episodes/{episode.episode_id}")
    assert (told["num_calls"], told["num_excluded"]) == (1, 1)


# C15: sub-agents in one episode

SUBAGENTS = {
    "A1": turn([1, 2], [3, END]),
    "B1": turn([7, 8], [4, END]),
    "A2": turn([1, 2, 3, END, SEP, 5], [6, END]),
    "B2": turn([7, 8, 4, END, SEP, 9], [3, END]),
}
SUBAGENT_ROWS = [
    ([1, 2, 3, 99, 98, 5, 6, 99], [0, 0, 1, 1, 0, 0, 1, 1]),
    ([7, 8, 4, 99, 98, 9, 3, 99], [0, 0, 1, 1, 0, 0, 1, 1]),
]


def says(gateway: GatewayProcess, text: str, script: Script) -> None:
    """Answer requests with this user message by this script, whenever they come."""
    gateway.engine.when(lambda received: words_of(received) == text, script)


def words_of(received: Received) -> object:
    return received.body["messages"][-1]["content"]


async def say(gateway: GatewayProcess, episode: Episode, text: str) -> None:
    answered = await gateway.chat(episode, {"messages": [{"role": "user", "content": text}]})
    assert answered.status == 200


async def test_c15_sub_agents_in_turn_give_two_rows(gateway: GatewayProcess) -> None:
    episode = await gateway.open_episode()
    for name, script in SUBAGENTS.items():
        says(gateway, name, script)
        await say(gateway, episode, name)
    await gateway.reward(episode, 1)
    assert rows(await gateway.samples(episode)) == SUBAGENT_ROWS


async def test_c15_sub_agents_in_parallel_give_the_same_rows_whatever_ends_first(gateway: GatewayProcess) -> None:
    episode = await gateway.open_episode()
    for number, (name, script) in enumerate(SUBAGENTS.items()):
        slower = Script(prompt_ids=script.prompt_ids, choices=script.choices, delay_s=0.4 - 0.1 * number)
        says(gateway, f"parallel {name}", slower)
    await asyncio.gather(*(say(gateway, episode, f"parallel {name}") for name in SUBAGENTS))
    samples = await gateway.samples(episode)
    assert rows(samples) == SUBAGENT_ROWS
    assert num_trained(samples) == 8


# C16: the next prompt re-tokenises


async def test_c16_a_history_that_re_tokenised_starts_a_new_row(gateway: GatewayProcess) -> None:
    episode = await gateway.open_episode()
    gateway.engine.script(
        turn([10, 11], [20, 21, END], [-0.1, -0.2, -0.3]), turn([10, 11, 22, END, SEP, 30], [40, END], [-0.4, -0.5])
    )
    await gateway.chat(episode)
    await gateway.chat(episode)
    samples = await gateway.samples(episode)
    assert rows(samples) == [
        ([10, 11, 20, 21, 99], [0, 0, 1, 1, 1]),
        ([10, 11, 22, 99, 98, 30, 40, 99], [0, 0, 0, 0, 0, 0, 1, 1]),
    ]
    logprobs = {tuple(sample["input_ids"]): sample["logprobs"] for sample in samples["samples"]}
    assert logprobs[10, 11, 20, 21, 99] == [None, None, -0.1, -0.2, -0.3]
    assert samples["excluded"] == []


# C24: turns cut by the limit


async def test_c24_an_end_token_that_the_next_prompt_adds_is_context(gateway: GatewayProcess) -> None:
    episode = await gateway.open_episode()
    gateway.engine.script(turn([1], [5, 6], finish="length"), turn([1, 5, 6, END, SEP, 3], [7, END]))
    await gateway.chat(episode, {"max_tokens": 2})
    await gateway.chat(episode)
    samples = await gateway.samples(episode)
    assert rows(samples) == [([1, 5, 6, 99, 98, 3, 7, 99], [0, 1, 1, 0, 0, 0, 1, 1])]
    (sample,) = samples["samples"]
    assert [value is not None for value in sample["logprobs"]] == [bool(mask) for mask in sample["loss_mask"]]
    assert [call["truncated"] for call in await gateway.calls(episode)] == [True, False]


async def test_c24_a_single_turn_cut_by_the_limit_gets_no_end_token(gateway: GatewayProcess) -> None:
    episode = await gateway.open_episode()
    gateway.engine.script(turn([1], [5, 6], finish="length"))
    await gateway.chat(episode)
    assert rows(await gateway.samples(episode)) == [([1, 5, 6], [0, 1, 1])]


# C29: rewards that are no numbers

NOT_FINITE = [b"NaN", b"1e999", b"-Infinity", b'"nan"', b"[1]"]


async def test_c29_only_numbers_are_rewards(gateway: GatewayProcess) -> None:
    episode = await gateway.open_episode()
    await gateway.chat(episode)
    start = b'{"episode_id":"' + episode.episode_id.encode() + b'"'
    for value in NOT_FINITE:
        answered = await gateway.send("POST", "/v1/reward", start + b',"reward":' + value + b"}")
        assert 400 <= answered.status < 500, value
    assert 400 <= (await gateway.send("POST", "/v1/reward", start + b"}")).status < 500
    await gateway.ask("POST", "/v1/reward", start + b',"final":false,"reward":null}')
    assert (await gateway.ask("GET", f"/v1/episodes/{episode.episode_id}"))["reward"] is None
    await gateway.reward(episode, 0.5)
    assert (await gateway.ask("GET", f"/v1/episodes/{episode.episode_id}"))["reward"] == 0.5


async def test_c29_true_is_one(gateway: GatewayProcess) -> None:
    episode = await gateway.open_episode()
    await gateway.ask("POST", "/v1/reward", {"episode_id": episode.episode_id, "reward": True})
    assert (await gateway.ask("GET", f"/v1/episodes/{episode.episode_id}"))["reward"] == 1.0


async def test_c29_an_unscored_member_has_no_weight(gateway: GatewayProcess) -> None:
    group = await group_of(gateway, "c29", [1, 0, None], num_rows=[1, 1, 1])
    assert [member["member"] for member in group["members"]] == [True, True, False]
    advantages = [member["advantage"] for member in group["members"]]
    assert advantages[:2] == pytest.approx([0.5, -0.5])
    assert not advantages[2]


# C34: an episode counts once in its group


async def test_c34_an_episode_of_three_rows_counts_once(gateway: GatewayProcess) -> None:
    group = await group_of(gateway, "c34", [1, 0, 0], num_rows=[3, 1, 1])
    assert [member["advantage"] for member in group["members"]] == pytest.approx([2 / 3, -1 / 3, -1 / 3])


async def group_of(gateway: GatewayProcess, run: str, rewards: list[float | None], num_rows: list[int]) -> Any:
    """A group of one task with these rewards and numbers of rows, its members in order, once all have ended."""
    settings = {"run": run, "mode": "train", "group_size": len(rewards), "credit": {"kind": "group", "std": False}}
    await gateway.ask("POST", "/v1/runs", settings)
    episodes = [await gateway.open_episode(task="one", run=run) for _ in rewards]
    for number, (episode, reward) in enumerate(zip(episodes, rewards, strict=True)):
        for row in range(num_rows[number]):
            gateway.engine.script(turn([100 * number + row], [5, END]))
            assert (await gateway.chat(episode)).status == 200
        assert len((await gateway.samples(episode))["samples"]) == num_rows[number]
        sent = {"episode_id": episode.episode_id, "reward": reward, "final": True}
        await gateway.ask("POST", "/v1/reward", sent)
    async with asyncio.timeout(10):
        while True:
            (group,) = (await gateway.ask("GET", f"/v1/groups?run={run}&task=one"))["data"]
            if sum(member["advantage"] is not None for member in group["members"]) >= 2:
                break
            await asyncio.sleep(0.05)
    order = {episode.episode_id: number for number, episode in enumerate(episodes)}
    return {**group, "members": sorted(group["members"], key=lambda member: order[member["episode_id"]])}


# C45: a body or a path that steers the proxy


async def test_c45_a_body_cannot_steer_the_proxy(gateway: GatewayProcess) -> None:
    episode = await gateway.open_episode()
    before = len(gateway.engine.received)
    connections = 0

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    async with await asyncio.start_server(note, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        for field in ({"api_base": f"http://127.0.0.1:{port}/x"}, {"base_url": f"http://127.0.0.1:{port}/x"}):
            assert (await gateway.chat(episode, field)).status in (200, 400)
        steering = {"extra_headers": {"Host": f"127.0.0.1:{port}", "Authorization": "Bearer x"}}
        assert (await gateway.chat(episode, steering)).status in (200, 400)
        image = {"type": "image_url", "image_url": {"url": f"http://127.0.0.1:{port}/x.png"}}
        assert (await gateway.chat(episode, {"messages": [{"role": "user", "content": [image]}]})).status == 400
        assert connections == 0
    assert (await gateway.chat(episode)).status == 200
    for received in gateway.engine.received[before:]:
        assert episode.api_key not in str(received.headers) + received.raw.decode()


@pytest.mark.parametrize(
    "path",
    ["/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/reset_prefix_cache", "/v1/../metrics", "/v1/%2e%2e/metrics"],
)
async def test_c45_the_engines_own_routes_are_out_of_reach(gateway: GatewayProcess, path: str) -> None:
    before = len(gateway.engine.received)
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = b'{"lora_name":"x","lora_path":"/etc"}'
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {gateway.agent_key}\r\nConnection: close\r\n"
    writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    answer = await reader.read()
    writer.close()
    assert answer.split(b" ")[1] in (b"403", b"404")
    assert [r for r in gateway.engine.received[before:] if r.path not in ("/v1/models", "/health")] == []
