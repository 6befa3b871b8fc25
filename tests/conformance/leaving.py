"""An agent that leaves: the engine is told at once, the call is kept as aborted, and nothing stays behind."""

from __future__ import annotations

import asyncio
import time

import aiohttp

from tests.conformance.faults import THREE
from tests.conformance.forms import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Form, Json, Sibling, across
from tests.conformance.rules import rule
from tests.conformance.scene import Episode, Scene, trained
from tests.fakes.scripted_answers import Script

LEAVING: dict[str, tuple[Json, Script, int]] = {
    "a whole answer": ({}, Script(delay_s=20), 0),
    "a stream, no chunk yet": ({"stream": True}, Script(delay_s=20), 0),
    "a stream, headers only": ({"stream": True}, Script(delay_s=20, headers_first=True), 0),
    "a stream, after three chunks": ({"stream": True}, Script(choices=THREE, hang_after=4), 3),
}


@rule("{0}: an agent that leaves after 1 s stops the engine within 2 s", case="C11", each=across([CHAT], LEAVING))
async def leaving_chat(scene: Scene, sibling: Sibling) -> None:
    await assert_leaving_stops(scene, sibling.form, sibling.value, stay_s=1.0)


@rule(
    "{0}: an agent that leaves soon stops the engine too",
    case="C11",
    each=across([COMPLETIONS, RESPONSES, MESSAGES], LEAVING),
)
async def leaving_elsewhere(scene: Scene, sibling: Sibling) -> None:
    await assert_leaving_stops(scene, sibling.form, sibling.value, stay_s=0.4)


async def assert_leaving_stops(scene: Scene, form: Form, how: tuple[Json, Script, int], stay_s: float) -> None:
    fields, script, num_chunks = how
    episode = await scene.open()
    await scene.answers(script)
    await leave(scene, episode, form, fields, num_chunks, stay_s)

    async def stopped() -> bool:
        (received,) = await scene.received()
        assert received.ended_s is None
        return received.disconnected_s is not None

    await scene.until(stopped, timeout_s=2.0)
    if "samples" in scene.gateway.capabilities:
        call = await scene.only_call(episode)
        assert (call["state"], call["reason"]) == ("aborted", "client_gone"), call
        assert trained(await scene.samples(episode)) == []
        assert (await scene.told(episode))["num_in_flight"] == 0


async def leave(scene: Scene, episode: Episode, form: Form, fields: Json, num_chunks: int, stay_s: float) -> None:
    """Ask, read so many events, stay a while and close the connection."""
    body = {"model": scene.gateway.model, **form.body(f"{scene.tag} hi", **fields)}
    headers = {"Authorization": f"Bearer {episode.api_key}"}
    async with aiohttp.ClientSession() as client:
        try:
            async with (
                asyncio.timeout(stay_s),
                client.post(scene.gateway.url + form.path, json=body, headers=headers) as response,
            ):
                seen = b""
                while seen.count(b"\n\n") < num_chunks or not num_chunks:
                    part = await response.content.readany()
                    assert part, f"the answer ended: {seen!r}"
                    seen += part
        except TimeoutError:
            assert not num_chunks, "the chunks did not come"


@rule("50 agents that leave hold nothing up: the next call answers at once", case="C11", alone=True)
async def fifty_leave(scene: Scene) -> None:
    episode = await scene.open()
    await scene.answers(Script(delay_s=20))
    ways: list[Json] = [{}, {"stream": True}]
    await asyncio.gather(*(leave(scene, episode, CHAT, ways[k % 2], 0, 1.0) for k in range(50)))

    async def all_stopped() -> bool:
        received = await scene.received()
        assert len(received) == 50
        return all(one.disconnected_s is not None for one in received)

    await scene.until(all_stopped, timeout_s=3.0)
    started_s = time.monotonic()
    ordinary = Scene(scene.gateway, scene.engine)
    assert (await ordinary.ask(episode)).status == 200
    assert time.monotonic() - started_s < 1
    if "samples" in scene.gateway.capabilities:
        calls = await scene.calls(episode)
        assert sorted(call["state"] for call in calls) == ["aborted"] * 50 + ["completed"]


@rule("an agent that leaves after its answer's end has a delivered call", case="C11", needs=["samples"])
async def leaves_after_the_end(scene: Scene) -> None:
    episode = await scene.open()
    async with scene.stream(episode) as response:
        assert b"[DONE]" in await response.read()
    assert (await scene.only_call(episode))["state"] == "completed"
    assert (await scene.samples(episode))["excluded"] == []
