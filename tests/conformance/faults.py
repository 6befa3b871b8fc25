"""An engine that fails: real statuses before the first byte, one error event after it, nothing of it trained."""

from __future__ import annotations

import json
import time

from tests.conformance.forms import CHAT, COMPLETIONS, FORMS, MESSAGES, RESPONSES, Answered, Form, Sibling, across
from tests.conformance.rules import rule
from tests.conformance.scene import END, Episode, Scene, reasons, trained
from tests.fakes.scripted_answers import Answer, Script

THREE = (Answer(ids=(5, 6, 7, END), texts=("one", "two", "three", "")),)
"""Streamed: the role (chat), then each text; so two events are `one` at most."""


@rule("{0}: an engine's 503 before any chunk is a 503 in JSON, not a stream", case="C10", each=FORMS)
async def busy_is_503(scene: Scene, form: Form) -> None:
    for streams in (True, False):
        await scene.answers(Script(status=503, error={"message": "too busy now", "type": "busy", "code": 503}))
        answered = await scene.ask(await scene.open(), form, stream=streams)
        assert answered.status == 503, answered.raw
        assert "too busy now" in form.error_of(answered)["message"]


def broken_scripts() -> dict[str, Script]:
    found = {}
    for number in (1, 2, 3):
        found[f"reset after {number} chunks"] = Script(choices=THREE, reset_after=number)
        found[f"an error event after {number} chunks"] = Script(choices=THREE, error_after=number)
        found[f"closed after {number} chunks"] = Script(choices=THREE, close_after=number)
    return found


BROKEN = broken_scripts()
BROKEN_TWO = {label: script for label, script in BROKEN.items() if " 2 " in label}


@rule("chat, {0}: the chunks, one error event, the end", case="C10", each=BROKEN)
async def broken_chat_stream(scene: Scene, script: Script) -> None:
    await assert_breaks(scene, CHAT, script)


@rule(
    "{0}: the chunks, one error event, the end", case="C10", each=across([COMPLETIONS, RESPONSES, MESSAGES], BROKEN_TWO)
)
async def broken_stream(scene: Scene, sibling: Sibling) -> None:
    await assert_breaks(scene, sibling.form, sibling.value)


async def assert_breaks(scene: Scene, form: Form, script: Script) -> None:
    episode = await scene.open()
    await scene.answers(script)
    answered = await in_time(scene, episode, form)
    num_chunks = script.reset_after or script.error_after or script.close_after or 0
    if form in (CHAT, COMPLETIONS):
        assert len(answered.events) == num_chunks + 1, answered.raw
    assert_one_error_at_the_end(form, answered)
    texts = ["one", "two", "three"][: num_chunks - (form is not COMPLETIONS)]
    assert form.text(answered) == "".join(texts), answered.raw
    await assert_failed_and_lives(scene, episode)


async def in_time(scene: Scene, episode: Episode, form: Form) -> Answered:
    """The answer, which must be over soon after the engine failed."""
    started_s = time.monotonic()
    answered = await scene.ask(episode, form, stream=True)
    assert time.monotonic() - started_s < 1, "the stream did not end at once"
    assert answered.status == 200, answered.raw
    return answered


def assert_one_error_at_the_end(form: Form, answered: Answered) -> None:
    *passed, last = answered.events
    assert form.is_error_event(last), last
    if form is RESPONSES and last["type"] == "response.failed" and passed[-1]["type"] == "error":
        passed.pop()  # the dialect tells one failure in two events
    assert not any(form.is_error_event(event) for event in passed), answered.raw
    assert answered.data.count(b"[DONE]") == 0, "a made-up end mark"
    assert not form.ends(passed), "a made-up end"
    assert b'"stop_reason":"end_turn"' not in answered.raw.replace(b" ", b"")


async def assert_failed_and_lives(scene: Scene, episode: Episode) -> None:
    """The call is kept as failed, gives nothing to train, and the episode goes on."""
    if "samples" not in scene.gateway.capabilities:
        return
    call = await scene.only_call(episode)
    assert (call["state"], call["reason"]) == ("failed", "upstream_failed"), call
    assert trained(await scene.samples(episode)) == []
    answered = await scene.gateway.send(
        "POST", CHAT.path, {"model": scene.gateway.model, **CHAT.body("go on")}, key=episode.api_key
    )
    assert answered.status == 200
    samples = await scene.samples(episode)
    assert set(reasons(samples)) == {"upstream_failed"}, samples["excluded"]
    assert {span["call_id"] for s in samples["samples"] for span in s["spans"]} == {answered.headers["x-hone-call"]}


def bad_event(text: str) -> Script:
    good = json.dumps({"choices": [{"index": 0, "delta": {"content": "one"}, "finish_reason": None}]})
    return Script(raw_events=[f"data: {good}\n\n".encode(), f"data: {text}\n\n".encode(), b"data: [DONE]\n\n"])


NO_EVENTS = {
    "an event that is cut": '{"choices": [',
    "an event that is a number": "5",
    "an event that is a list": "[]",
    "choices that are no list": '{"choices": 3}',
    "vLLM's older error": '{"object":"error","message":"old form","code":500}',
    "a web page": "<html>",
}


@rule("chat, {0}: what came before passes, then one error event", case="C10", each=NO_EVENTS)
async def malformed_event(scene: Scene, text: str) -> None:
    episode = await scene.open()
    await scene.answers(bad_event(text))
    answered = await in_time(scene, episode, CHAT)
    assert CHAT.text(answered) == "one"
    assert_one_error_at_the_end(CHAT, answered)
    await assert_failed_and_lives(scene, episode)


@rule("chat, an end mark without a finish reason: an error, no made-up reason", case="C10")
async def end_mark_alone(scene: Scene) -> None:
    episode = await scene.open()
    await scene.answers(Script(choices=(Answer(ids=(5, 6), finish_reason=None),)))
    answered = await in_time(scene, episode, CHAT)
    assert_one_error_at_the_end(CHAT, answered)
    await assert_failed_and_lives(scene, episode)


@rule("two choices of which one never finishes: an error", case="C10")
async def one_choice_unfinished(scene: Scene) -> None:
    episode = await scene.open()
    await scene.answers(Script(choices=(Answer(ids=(5, END)), Answer(ids=(6,), finish_reason=None))))
    answered = await scene.ask(episode, stream=True, n=2)
    assert CHAT.is_error_event(answered.events[-1]), answered.raw
    assert b"[DONE]" not in answered.raw
    await assert_failed_and_lives(scene, episode)


EARLY = {
    "reset": Script(reset_after=0),
    "closed": Script(close_after=0),
    "an error event": Script(error_after=0),
    "no JSON": Script(raw_events=[b"data: {\n\n"]),
}


@rule("{0} before the first event: a real status of 502", case="C10", each=across(FORMS.values(), EARLY))
async def early_failure(scene: Scene, sibling: Sibling) -> None:
    episode = await scene.open()
    await scene.answers(sibling.value)
    answered = await scene.ask(episode, sibling.form, stream=True)
    assert answered.status == 502, (answered.status, answered.raw)
    sibling.form.error_of(answered)


WHOLE = {
    "reset": Script(reset_after=0),
    "empty": Script(raw_body=b""),
    "cut": Script(raw_body=b'{"choices": [{"index": 0, "message"'),
    "without an end": Script(choices=(Answer(finish_reason=None),)),
    "a 200 with an error": Script(raw_body=b'{"error": {"message": "x"}}'),
    "a 500": Script(status=500),
    "a 504": Script(status=504),
}


@rule("a whole answer, {0}: 502 in JSON", case="C10", each=across([CHAT], WHOLE))
async def whole_failure(scene: Scene, sibling: Sibling) -> None:
    episode = await scene.open()
    await scene.answers(sibling.value)
    answered = await scene.ask(episode, sibling.form)
    assert answered.status == 502, (answered.status, answered.raw)
    sibling.form.error_of(answered)
    await assert_failed_and_lives(scene, episode)


@rule(
    "{0}: an engine's 4xx passes with its message, in the dialect's form",
    each=across(FORMS.values(), {"400": 400, "422": 422, "429": 429}),
)
async def engine_4xx_passes(scene: Scene, sibling: Sibling) -> None:
    error = {"message": "no, because", "type": "BadRequestError", "param": None, "code": sibling.value}
    await scene.answers(Script(status=sibling.value, error=error, headers={"Retry-After": "7"}))
    answered = await scene.ask(await scene.open(), sibling.form)
    assert answered.status == sibling.value
    assert sibling.form.error_of(answered)["message"] == "no, because"
    assert answered.headers.get("retry-after") == "7"


@rule(
    "{0}: a context that does not fit is context_length_exceeded, and the call's reason context_limit",
    needs=["samples"],
    each={"chat": CHAT, "completions": COMPLETIONS},
)
async def context_overflow(scene: Scene, form: Form) -> None:
    message = "This model's maximum context length is 10 tokens. However, you requested 11."
    await scene.answers(Script(status=400, error={"message": message, "type": "BadRequestError", "code": 400}))
    episode = await scene.open()
    answered = await scene.ask(episode, form)
    assert (answered.status, form.error_of(answered)["code"]) == (400, "context_length_exceeded")
    assert (await scene.only_call(episode))["reason"] == "context_limit"


@rule("a redirect of the engine is never followed")
async def engine_redirects(scene: Scene) -> None:
    await scene.answers(Script(status=307, headers={"Location": scene.gateway.url + "/health/live"}))
    assert (await scene.ask(await scene.open())).status == 502
