"""What stands on every answer: ids, names, headers; how errors are told; which paths mean what."""

from __future__ import annotations

import re
from typing import Any

from tests.conformance.forms import CHAT, FORMS, MESSAGES, RESPONSES, Answered, Form, Json, Sibling, across
from tests.conformance.rules import rule
from tests.conformance.scene import Episode, Scene
from tests.fakes.scripted_answers import Answer, Script

STREAMED = {"whole": False, "streamed": True}


def id_in(form: Form, answered: Answered) -> str:
    """The one id that an answer tells."""
    said = answered.events if answered.headers["content-type"].startswith("text/event-stream") else [answered.json]
    if form is MESSAGES:
        said = [one.get("message", one) for one in said]
    if form is RESPONSES:
        said = [one.get("response", one) for one in said]
    found = {one["id"] for one in said if "id" in one and one.get("object", "") != "item"}
    found = {each for each in found if each.startswith(form.prefix)}
    assert len(found) == 1, found
    return found.pop()


@rule(
    "{0}: the id is minted by the gateway, with the dialect's prefix and 128 random bits",
    each=across(FORMS.values(), STREAMED),
)
async def ids_are_minted(scene: Scene, sibling: Sibling) -> None:
    form, episode = sibling.form, await scene.open()
    ids = [id_in(form, await scene.ask(episode, form, stream=sibling.value)) for _ in range(4)]
    assert len(set(ids)) == 4
    for one in ids:
        assert re.fullmatch(re.escape(form.prefix) + r"[A-Za-z0-9_-]{22,}", one), one
        random = one.removeprefix(form.prefix)[-32:]
        assert len(set(random)) >= 8, f"hardly random: {one}"


@rule(
    "{0}: X-Hone-Call is the id, X-Hone-Episode the episode, X-Hone-Version a number",
    needs=["episodes"],
    each=across(FORMS.values(), STREAMED),
)
async def headers_on_answers(scene: Scene, sibling: Sibling) -> None:
    episode = await scene.open()
    answered = await scene.ask(episode, sibling.form, stream=sibling.value)
    headers = answered.headers
    assert headers["x-hone-call"] == id_in(sibling.form, answered)
    assert headers["x-hone-episode"] == episode.episode_id
    assert headers["x-hone-version"].isdigit()


@rule("the headers stand on failures too", needs=["episodes"])
async def headers_on_failures(scene: Scene) -> None:
    episode = await scene.open()
    await scene.answers(Script(status=503))
    headers = (await scene.ask(episode)).headers
    assert headers["x-hone-episode"] == episode.episode_id
    assert {"x-hone-call", "x-hone-version"} <= set(headers)


@rule("{0}: the model is told as it was asked for", each=across(FORMS.values(), STREAMED))
async def model_is_echoed(scene: Scene, sibling: Sibling) -> None:
    name = scene.gateway.model
    answered = await scene.ask(await scene.open(), sibling.form, stream=sibling.value, model=name)
    said = answered.events if sibling.value else [answered.json]
    told = {
        one["model"]
        for event in said
        for one in (event, event.get("message"), event.get("response"))
        if one and "model" in one
    }
    assert told == {name}, told


@rule("with one policy any model name means it, visibly: {0}", needs=["policies"], each=FORMS)
async def any_model_name(scene: Scene, form: Form) -> None:
    answered = await scene.ask(await scene.open(), form, model="gpt-4o")
    assert answered.status == 200, answered.raw
    assert answered.json["model"] == "gpt-4o"
    assert answered.headers["x-hone-policy"] == scene.gateway.model


@rule("the model list holds the policy, and its card", needs=["models"])
async def models_are_listed(scene: Scene) -> None:
    key = scene.gateway.keys.agent
    listed = (await scene.gateway.send("GET", "/v1/models", key=key)).json
    assert (listed["object"], scene.gateway.model in [card["id"] for card in listed["data"]]) == ("list", True)
    card = await scene.gateway.send("GET", f"/v1/models/{scene.gateway.model}", key=key)
    assert (card.status, card.json["id"]) == (200, scene.gateway.model)
    unknown = await scene.gateway.send("GET", "/v1/models/no-such-model", key=key)
    assert (unknown.status, CHAT.error_of(unknown)["code"]) == (404, "model_not_found")


# errors

NO_JSON = {
    "empty": b"",
    "cut": b'{"model": ',
    "a list": b"[]",
    "a number": b"5",
    "no text": b"\xff\xfe",
    "NaN": b'{"model": NaN}',
}


@rule("{0}: a body that is no JSON object is a 400 in the dialect's form", each=FORMS)
async def bodies_that_are_none(scene: Scene, form: Form) -> None:
    episode = await scene.open()
    for label, body in NO_JSON.items():
        answered = await scene.gateway.send("POST", form.path, body, key=episode.api_key)
        assert answered.status == 400, (label, answered.status, answered.raw)
        form.error_of(answered)


def wrong_fields(form: Form) -> dict[str, Json]:
    fields: dict[str, Json] = {
        "a temperature that is no number": {"temperature": "hot"},
        "stream that is no boolean": {"stream": "yes"},
        "a limit that is no number": {form.limit: "many"},
        "a limit of 0": {form.limit: 0},
        "no model": {"model": ""},
        "a model that is a number": {"model": 5},
    }
    if form is not RESPONSES:
        fields["a conversation that is a number"] = dict.fromkeys(form.ask(""), 5)
    return fields


@rule("{0}: a value that cannot be honoured is a 400 that says what to write", each=FORMS)
async def wrong_values(scene: Scene, form: Form) -> None:
    episode = await scene.open()
    for label, fields in wrong_fields(form).items():
        answered = await scene.ask(episode, form, **fields)
        assert answered.status == 400, (label, answered.status, answered.raw)
        form.error_of(answered)
    assert await scene.received() == []


@rule("{0}: nothing refused is recorded", needs=["samples"], each=FORMS)
async def refusals_leave_no_call(scene: Scene, form: Form) -> None:
    episode = await scene.open()
    await scene.ask(episode, form, temperature="hot")
    await scene.gateway.send("POST", form.path, b"{", key=episode.api_key)
    told = await scene.told(episode)
    assert (told["num_calls"], told["num_in_flight"]) == (0, 0)


@rule("{0}: a wrong key is a 401 in the dialect's form", each=FORMS)
async def wrong_key(scene: Scene, form: Form) -> None:
    answered = await scene.ask(Episode("no-such-key"), form)
    assert answered.status == 401, answered.raw
    assert form.error_of(answered)["type"] == "authentication_error"


@rule("{0}: GET is a 405 in JSON that names POST", each=FORMS)
async def wrong_method(scene: Scene, form: Form) -> None:
    answered = await scene.gateway.send("GET", form.path, key=scene.gateway.keys.agent)
    assert (answered.status, answered.headers.get("allow")) == (405, "POST"), answered.raw
    form.error_of(answered)


UNSUPPORTED: dict[str, tuple[Form, Json]] = {
    "chat, functions": (CHAT, {"functions": [{"name": "f"}]}),
    "chat, function_call": (CHAT, {"function_call": "auto"}),
    "chat, audio": (CHAT, {"audio": {"voice": "x", "format": "wav"}}),
    "chat, modalities": (CHAT, {"modalities": ["text", "audio"]}),
    "chat, web_search_options": (CHAT, {"web_search_options": {}}),
    "chat, top_logprobs without logprobs": (CHAT, {"top_logprobs": 2}),
    "chat, stream_options without stream": (CHAT, {"stream_options": {"include_usage": True}}),
    "responses, background": (RESPONSES, {"background": True}),
    "responses, a tool of OpenAI's servers": (RESPONSES, {"tools": [{"type": "web_search_preview"}]}),
    "responses, an unknown previous_response_id": (RESPONSES, {"previous_response_id": "resp_" + "0" * 32}),
    "responses, a stored prompt": (RESPONSES, {"prompt": {"id": "pmpt_1"}}),
    "messages, a tool of Anthropic's servers": (
        MESSAGES,
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    ),
    "messages, MCP servers": (MESSAGES, {"mcp_servers": [{"type": "url", "url": "http://127.0.0.1:9", "name": "m"}]}),
}


@rule(
    "a field that cannot be honoured is refused, never ignored: {0}",
    each={k: Sibling(*v) for k, v in UNSUPPORTED.items()},
)
async def unsupported_fields(scene: Scene, sibling: Sibling) -> None:
    answered = await scene.ask(await scene.open(), sibling.form, **sibling.value)
    assert answered.status in (400, 404), (answered.status, answered.raw)
    sibling.form.error_of(answered)
    assert await scene.received() == []


# n


@rule("n up to the cap gives n choices, beyond it a 400")
async def number_of_choices(scene: Scene) -> None:
    episode = await scene.open()
    await scene.answers(Script(choices=tuple(Answer(ids=(5 + k, 99)) for k in range(3))), about="three")
    answered = await scene.ask(episode, about="three", n=3)
    assert [choice["index"] for choice in answered.json["choices"]] == [0, 1, 2]
    for wrong in (0, -1, 9, 10**30, "2", 1.5):
        refused = await scene.ask(episode, about="wrong", n=wrong)
        assert refused.status == 400, (wrong, refused.status)
    assert await scene.received("wrong") == []


# paths

SPELLINGS = [
    "//v1//chat/completions/",
    "/v1/v1/chat/completions",
    "/v1/chat/completions/",
    "/v1/chat//completions",
    "//v1/v1//chat/completions//",
]


@rule("slashes and /v1 too many are forgiven, without a redirect", needs=["episodes"])
async def spellings(scene: Scene) -> None:
    episode = await scene.open()
    for path in SPELLINGS:
        body = f'{{"model": "{scene.gateway.model}", "messages": [{{"role": "user", "content": "hi"}}]}}'.encode()
        head = f"POST {path} HTTP/1.1\nAuthorization: Bearer {episode.api_key}\nContent-Type: application/json"
        status, raw = await scene.gateway.raw(head, body)
        assert status == 200, (path, raw[:300])


REFUSED = [
    "/v1/../v1/chat/completions",
    "/v1/./chat/completions",
    "/v1%2fchat/completions",
    "/v1/%2e%2e/v1/chat/completions",
    "/v1/chat%2Fcompletions",
    "/v1\\chat/completions",
    "/v1/chat/completions/%2e",
    "/e/..%2fx/v1/chat/completions",
]


@rule("dots and encoded slashes in a path are refused", case="C45", needs=["episodes"])
async def refused_paths(scene: Scene) -> None:
    episode = await scene.open()
    for path in REFUSED:
        body = f'{{"model": "x", "messages": [{{"role": "user", "content": "{scene.tag}"}}]}}'.encode()
        head = f"POST {path} HTTP/1.1\nAuthorization: Bearer {episode.api_key}\nContent-Type: application/json"
        status, raw = await scene.gateway.raw(head, body)
        assert status in (400, 404), (path, status)
        assert b"application/json" in raw.lower(), raw[:300]
    assert await scene.received() == []


@rule("{0} of an unknown path is a 404 in JSON, never a page", each={"POST": "POST", "GET": "GET"})
async def unknown_paths(scene: Scene, method: str) -> None:
    for path in ("/v1/no-such-thing", "/no-such-thing", "/v1/chat", "/v1/chat/completions/x", "/v1"):
        answered = await scene.gateway.send(
            method, path, {} if method == "POST" else None, key=scene.gateway.keys.agent
        )
        assert answered.status == 404, (path, answered.status)
        assert "error" in answered.json, answered.raw


@rule("a body with a content-encoding is refused, not guessed at")
async def encoded_body(scene: Scene) -> None:
    episode = await scene.open()
    headers: dict[str, Any] = {"Content-Encoding": "gzip"}
    answered = await scene.gateway.send("POST", CHAT.path, b"\x1f\x8b", key=episode.api_key, **headers)
    assert answered.status == 400
    CHAT.error_of(answered)


@rule("a body that says it is too large is a 413 before it is read")
async def too_large(scene: Scene) -> None:
    episode = await scene.open()
    head = f"POST /v1/chat/completions HTTP/1.1\nAuthorization: Bearer {episode.api_key}"
    status, raw = await scene.gateway.raw(head, declared=1 << 30)
    assert status == 413, raw[:200]
