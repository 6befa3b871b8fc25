"""Retries of SDKs: the attempt that an agent never saw is not trained; equal calls that nobody marked are all real."""

from __future__ import annotations

import asyncio

from tests.conformance.episodes import NEEDS, RETRY
from tests.conformance.forms import Json
from tests.conformance.rules import rule
from tests.conformance.scene import Scene, reasons, rows, turn
from tests.fakes.scripted_answers import Answer, Script


@rule("a retry supersedes the one attempt it repeats", needs=[*NEEDS, "samples"])
async def retry_supersedes(scene: Scene) -> None:
    episode = await scene.open()
    await scene.answers(turn([1], [5, 99]), turn([1], [6, 99]))
    for count in ("0", "1"):
        assert (await scene.ask(episode, headers={RETRY: count})).status == 200
    samples = await scene.samples(episode)
    assert (rows(samples), reasons(samples)) == ([([1, 6, 99], [0, 1, 1])], ["superseded"])


@rule("a second retry supersedes the first", needs=[*NEEDS, "samples"])
async def retries_chain(scene: Scene) -> None:
    episode = await scene.open()
    await scene.answers(turn([1], [5, 99]), turn([1], [6, 99]), turn([1], [7, 99]))
    for count in ("0", "1", "2"):
        await scene.ask(episode, headers={RETRY: count})
    samples = await scene.samples(episode)
    assert (rows(samples), reasons(samples)) == ([([1, 7, 99], [0, 1, 1])], ["superseded"] * 2)


@rule("a retry after a failure leaves the failure's own reason", needs=[*NEEDS, "samples"])
async def retry_after_failure(scene: Scene) -> None:
    episode = await scene.open()
    await scene.answers(Script(status=503), turn([1], [6, 99]))
    assert (await scene.ask(episode, headers={RETRY: "0"})).status == 503
    assert (await scene.ask(episode, headers={RETRY: "1"})).status == 200
    samples = await scene.samples(episode)
    assert (rows(samples), reasons(samples)) == ([([1, 6, 99], [0, 1, 1])], ["upstream_failed"])


@rule("a retry with two attempts it might repeat: the delivered ones are real", needs=[*NEEDS, "samples"])
async def ambiguous_retry(scene: Scene) -> None:
    episode = await scene.open()
    await scene.answers(turn([1], [5, 99]), turn([1], [6, 99]), turn([1], [7, 99]))
    for count in ("0", "0", "1"):
        await scene.ask(episode, headers={RETRY: count})
    samples = await scene.samples(episode)
    assert len(rows(samples)) == 3, samples
    assert samples["excluded"] == []


@rule("of two attempts a retry might repeat, the undelivered one is ambiguous", needs=[*NEEDS, "samples"])
async def ambiguous_undelivered(scene: Scene) -> None:
    episode = await scene.open()
    await scene.answers(turn([1], [5, 99]), Script(delay_s=20), turn([1], [7, 99]))
    await scene.ask(episode, headers={RETRY: "0"})
    leaving = asyncio.create_task(scene.ask(episode, headers={RETRY: "0"}))

    async def two() -> bool:
        return len(await scene.received()) == 2

    await scene.until(two)
    leaving.cancel()
    await asyncio.wait([leaving])
    await scene.ask(episode, headers={RETRY: "1"})

    async def told() -> Json | None:
        samples = await scene.samples(episode)
        return samples if samples["num_calls"] == 3 else None

    samples = await scene.until(told)
    assert (len(rows(samples)), reasons(samples)) == (2, ["ambiguous_retry"])


@rule(
    "equal calls without a retry header are all real: {0}",
    needs=[*NEEDS, "samples"],
    each={"in turn": False, "in parallel": True},
)
async def equal_calls(scene: Scene, at_once: bool) -> None:
    episode = await scene.open()
    await scene.answers(Script(prompt_ids=(1,), choices=(Answer(ids=(5, 99)),), delay_s=0.1))
    if at_once:
        await asyncio.gather(scene.ask(episode), scene.ask(episode))
    else:
        await scene.ask(episode)
        await scene.ask(episode)
    samples = await scene.samples(episode)
    assert (rows(samples), samples["excluded"]) == ([([1, 5, 99], [0, 1, 1])] * 2, [])


@rule("a retry header with another body, episode or no earlier attempt supersedes nothing", needs=[*NEEDS, "samples"])
async def retry_of_nothing(scene: Scene) -> None:
    one, other = await scene.open(), await scene.open()
    await scene.ask(one, headers={RETRY: "0"})
    await scene.ask(one, headers={RETRY: "1"}, user="another body")
    await scene.ask(other, headers={RETRY: "2"})
    for episode in (one, other):
        assert (await scene.samples(episode))["excluded"] == []
