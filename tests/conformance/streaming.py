"""Answers equal what the engine sent, event for event, minus what the agent did not ask for; and they really stream."""

from __future__ import annotations

import asyncio
import copy
import json

from tests.conformance.forms import (
    CHAT,
    COMPLETIONS,
    FORMS,
    OPENAI,
    Answered,
    Form,
    Json,
    Sibling,
    across,
)
from tests.conformance.rules import rule
from tests.conformance.scene import END, Scene
from tests.fakes.scripted_answers import Answer, Script

PIECES = ("Hello", " wörld", "\u2028", " \U0001f600", '{"a": 1}\n\n', "\x7f\u0085", " data: x", "")
"""Words that break parsers which split text by lines, or bytes by characters."""


def engine_events(form: Form, pieces: tuple[str, ...] = PIECES) -> list[Json]:
    """A stream as the engine sends it: ids, log-probabilities and usage in it, and fields that nobody knows."""
    is_chat = form is not COMPLETIONS
    kind = "chat.completion.chunk" if is_chat else "text_completion"
    frame: Json = {
        "id": "engine-1",
        "object": kind,
        "created": 1_700_000_000,
        "model": "base",
        "x_engine": {"k": [1.5, None]},
    }
    events: list[Json] = []
    if is_chat:
        first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        events.append({**frame, "choices": [first], "prompt_token_ids": [1, 2]})
    for number, text in enumerate(pieces):
        last = number == len(pieces) - 1
        choice: Json = {
            "index": 0,
            "finish_reason": "stop" if last else None,
            "token_ids": [END if last else 50 + number],
        }
        if is_chat:
            entry = {"token": text, "logprob": -0.5, "bytes": list(text.encode()), "top_logprobs": []}
            choice |= {"delta": {"content": text}, "logprobs": {"content": [entry]}}
        else:
            scores = {"tokens": [text], "token_logprobs": [-0.5], "text_offset": [0], "top_logprobs": None}
            choice |= {"text": text, "logprobs": scores, "prompt_token_ids": [1, 2]}
        events.append({**frame, "choices": [choice]})
    usage = {"prompt_tokens": 2, "completion_tokens": len(pieces), "total_tokens": 2 + len(pieces)}
    return [*events, {**frame, "choices": [], "usage": usage}]


def encoded(events: list[Json], end: str = "\n", prefix: str = "data: ", *, ascii_only: bool = False) -> bytes:
    said = [json.dumps(event, ensure_ascii=ascii_only) for event in events] + ["[DONE]"]
    return "".join(f"{prefix}{one}{end}{end}" for one in said).encode()


def for_agent(event: Json, answered: Answered, model: str, **shown: bool) -> Json | None:
    """What of an engine's event the agent gets; nothing of one that holds only usage."""
    said = copy.deepcopy(event)
    if not shown.get("usage") and said.pop("usage", None) is not None and not said["choices"]:
        return None
    if not shown.get("ids"):
        said.pop("prompt_token_ids", None)
    for choice in said["choices"]:
        hidden = [name for name in ("token_ids", "prompt_token_ids") if not shown.get("ids")]
        for name in [*hidden, *([] if shown.get("logprobs") else ["logprobs"])]:
            choice.pop(name, None)
    return said | {"id": answered.headers.get("x-hone-call", answered.events[0]["id"]), "model": model}


def assert_equal_events(answered: Answered, events: list[Json], model: str, **shown: bool) -> None:
    wanted = [said for event in events if (said := for_agent(event, answered, model, **shown)) is not None]
    got = answered.events
    for number, (mine, theirs) in enumerate(zip(got, wanted, strict=False)):
        assert mine == theirs, f"event {number}: {mine} instead of {theirs}"
    assert len(got) == len(wanted), f"{len(got)} events instead of {len(wanted)}"
    assert answered.data.count(b"[DONE]") == 1
    assert answered.data[-1] == b"[DONE]"


@rule("{0}: the events of a stream are the engine's, one for one", each=OPENAI)
async def events_are_equal(scene: Scene, form: Form) -> None:
    events = engine_events(form)
    await scene.answers(Script(raw_events=[encoded(events)]))
    answered = await scene.ask(await scene.open(), form, stream=True)
    assert_equal_events(answered, events, scene.gateway.model)


@rule("{0}: what the agent asked for is in the events: ids, log-probabilities, usage", each=OPENAI)
async def asked_for_is_shown(scene: Scene, form: Form) -> None:
    events = engine_events(form)
    await scene.answers(Script(raw_events=[encoded(events)]))
    shows: Json = {"return_token_ids": True, "stream_options": {"include_usage": True}}
    shows["logprobs"] = True if form is CHAT else 1
    answered = await scene.ask(await scene.open(), form, stream=True, **shows)
    assert_equal_events(answered, events, scene.gateway.model, usage=True, ids=True, logprobs=True)


@rule("{0}: a stream's words are the engine's, piece by piece", each=FORMS)
async def words_streamed(scene: Scene, form: Form) -> None:
    await scene.answers(Script(choices=(Answer(ids=(5, 6, 7, END), texts=("a", "bé", " \n", "")),)))
    answered = await scene.ask(await scene.open(), form, stream=True)
    assert answered.status == 200, answered.raw
    assert [text for event in answered.events if (text := form.delta(event))] == ["a", "bé", " \n"]
    assert form.has_ended(answered)


@rule("{0}: a whole answer holds the same words as the stream", each=FORMS)
async def words_whole(scene: Scene, form: Form) -> None:
    await scene.answers(Script(choices=(Answer(ids=(5, 6, 7, END), texts=("a", "bé", " \n", "")),)))
    answered = await scene.ask(await scene.open(), form)
    assert answered.status == 200, answered.raw
    assert form.text(answered) == "abé \n"


@rule("{0}: a whole answer is the engine's, minus what was not asked for", each=OPENAI)
async def whole_is_equal(scene: Scene, form: Form) -> None:
    event = engine_events(form)[1]
    choice = dict(event["choices"][0])
    if form is CHAT:
        del choice["delta"]
        choice["message"] = {"role": "assistant", "content": "x\u2028y", "x_other": [1]}
    whole = {
        **event,
        "choices": [{**choice, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 1},
    }
    await scene.answers(Script(raw_body=json.dumps(whole).encode()))
    answered = await scene.ask(await scene.open(), form)
    wanted = {**whole, "id": answered.json["id"], "model": scene.gateway.model}
    wanted["choices"] = [
        {n: v for n, v in whole["choices"][0].items() if n not in ("token_ids", "logprobs", "prompt_token_ids")}
    ]
    assert answered.json == wanted, answered.json


USAGE = {"left out": {}, "null": {"stream_options": None}, "false": {"stream_options": {"include_usage": False}}}


@rule(
    "{0}: no usage chunk in the stream",
    each=across(OPENAI.values(), {f"include_usage {k}": v for k, v in USAGE.items()}),
)
async def no_usage_chunk(scene: Scene, sibling: Sibling) -> None:
    answered = await scene.ask(await scene.open(), sibling.form, stream=True, **sibling.value)
    assert answered.status == 200, answered.raw
    assert all(event["choices"] and not event.get("usage") for event in answered.events)


@rule("{0}: with include_usage exactly one usage chunk, the last before the end mark", each=OPENAI)
async def one_usage_chunk(scene: Scene, form: Form) -> None:
    answered = await scene.ask(await scene.open(), form, stream=True, stream_options={"include_usage": True})
    told = [number for number, event in enumerate(answered.events) if event.get("usage")]
    assert told == [len(answered.events) - 1], told
    assert answered.events[-1]["choices"] == []
    assert answered.events[-1]["usage"]["completion_tokens"] > 0


@rule("{0}: a whole answer tells the tokens used", each=FORMS)
async def whole_usage(scene: Scene, form: Form) -> None:
    await scene.answers(Script(prompt_ids=(1, 2, 3), choices=(Answer(ids=(5, END)),)))
    usage = (await scene.ask(await scene.open(), form)).json["usage"]
    counts = (
        usage.get("prompt_tokens", usage.get("input_tokens")),
        usage.get("completion_tokens", usage.get("output_tokens")),
    )
    assert counts == (3, 2), usage


@rule("{0}: words arrive while the engine still generates", each=FORMS)
async def really_streams(scene: Scene, form: Form) -> None:
    await scene.answers(Script(choices=(Answer(ids=(5, 6, 7, END), texts=("first", "second", "", "")),), hang_after=3))
    async with asyncio.timeout(5), scene.stream(await scene.open(), form) as response:
        seen = b""
        while b"first" not in seen or b"second" not in seen:
            part = await response.content.readany()
            assert part, seen
            seen += part


@rule("{0}: when the end mark is seen, the call is recorded", needs=["samples"], each=FORMS)
async def recorded_before_release(scene: Scene, form: Form) -> None:
    for streams in (True, False):
        episode = await scene.open()
        answered = await scene.ask(episode, form, stream=streams)
        assert answered.status == 200, answered.raw
        samples = await scene.samples(episode)
        assert (samples["num_calls"], samples["excluded"]) == (1, []), samples


@rule("several choices are interleaved as the engine interleaves them")
async def choices_interleaved(scene: Scene) -> None:
    frame: Json = {"id": "e", "object": "chat.completion.chunk", "created": 1, "model": "base"}
    order = [(1, "x", None), (0, "a", None), (0, "b", "stop"), (1, "y", None), (1, "z", "length")]
    events: list[Json] = [
        {**frame, "choices": [{"index": i, "delta": {"content": text}, "finish_reason": why, "token_ids": [7]}]}
        for i, text, why in order
    ]
    await scene.answers(Script(raw_events=[encoded(events)]))
    answered = await scene.ask(await scene.open(), stream=True, n=2)
    assert_equal_events(answered, events, scene.gateway.model)


@rule("{0}: hidden reasoning is asked for and hidden from the agent", each={"streamed": True, "whole": False})
async def reasoning_is_hidden(scene: Scene, streams: bool) -> None:
    deltas = ({"reasoning_content": "hmm", "reasoning": "hmm"}, {"content": "yes"})
    message = {"role": "assistant", "content": "yes", "reasoning": "hmm", "reasoning_content": "hmm"}
    await scene.answers(Script(choices=(Answer(ids=(5, END), deltas=deltas, message=message),)))
    answered = await scene.ask(await scene.open(), stream=streams, include_reasoning=False)
    assert CHAT.text(answered) == "yes"
    assert b"hmm" not in answered.raw
    assert (await scene.sent())["include_reasoning"] is True


@rule("reasoning that nobody hid is shown as the engine names it")
async def reasoning_is_shown(scene: Scene) -> None:
    deltas = ({"reasoning": "hmm"}, {"content": "yes"})
    await scene.answers(Script(choices=(Answer(ids=(5, END), deltas=deltas),)))
    answered = await scene.ask(await scene.open(), stream=True)
    assert [event["choices"][0]["delta"] for event in answered.events[1:]] == [*deltas]
