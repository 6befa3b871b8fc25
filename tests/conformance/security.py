"""Nothing in a body or a path steers the gateway, reaches the engine's own routes, or carries a key across."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.forms import CHAT, COMPLETIONS, FORMS, MESSAGES, RESPONSES, Form, Json, Sibling, across, user
from tests.conformance.rules import rule
from tests.conformance.scene import Scene
from tests.fakes.scripted_answers import Script


@dataclass(slots=True)
class Trap:
    """A server that nobody has business with, and who came all the same."""

    url: str = ""
    visitors: list[str] = field(default_factory=list)


@asynccontextmanager
async def trap() -> AsyncIterator[Trap]:
    found = Trap()

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.visitors.append("connected")
        writer.close()

    async with await asyncio.start_server(note, "127.0.0.1", 0) as listener:
        found.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/x"
        yield found


STEERING: dict[str, Any] = {
    "api_base": lambda url: {"api_base": url},
    "base_url": lambda url: {"base_url": url},
    "extra_headers": lambda url: {"extra_headers": {"Host": url[7:-2], "Authorization": "Bearer x"}},
    "extra_body": lambda url: {"extra_body": {"api_base": url}},
    "a deep api_base": lambda url: {"x": [{"deep": [{"api_base": url}]}]},
    "api_key and base_url": lambda url: {"api_key": "x", "base_url": url},
    "proxy": lambda url: {"proxy": url, "proxies": {"http": url}},
    "litellm_params": lambda url: {"litellm_params": {"api_base": url}},
    "chat_template_kwargs": lambda url: {"chat_template_kwargs": {"chat_template": "{{ x }}"}},
}


@rule("{0}: no connection leaves, the field is ignored or a 400", case="C45", each=across(FORMS.values(), STEERING))
async def steering(scene: Scene, sibling: Sibling) -> None:
    async with trap() as elsewhere:
        fields = sibling.value(elsewhere.url)
        answered = await scene.ask(await scene.open(), sibling.form, **fields)
        assert answered.status in (200, 400), answered.raw
        assert elsewhere.visitors == []
        for received in await scene.received():
            assert not set(fields) - {"x"} & set(received.body), received.body
            assert elsewhere.url not in received.raw


@rule("{0}: a forbidden name is found however it is escaped", case="C45", each=FORMS)
async def escaped_names(scene: Scene, form: Form) -> None:
    async with trap() as elsewhere:
        episode = await scene.open()
        body = json.dumps({"model": scene.gateway.model, **form.body(f"{scene.tag} hi"), "x": {"NAME": elsewhere.url}})
        for name in ("api\\u005fbase", "\\u0062ase_url", "extra_header\\u0073"):
            raw = body.replace("NAME", name).encode()
            answered = await scene.gateway.send("POST", form.path, raw, key=episode.api_key)
            assert answered.status in (200, 400), answered.raw
        assert elsewhere.visitors == []
        assert not [one for one in await scene.received() if elsewhere.url in one.raw]


MEDIA: dict[str, tuple[Form, Any]] = {
    "chat, image_url": (CHAT, lambda url: {"messages": [user([{"type": "image_url", "image_url": {"url": url}}])]}),
    "chat, a bare image_url": (CHAT, lambda url: {"messages": [user([{"type": "image_url", "image_url": url}])]}),
    "chat, audio_url": (CHAT, lambda url: {"messages": [user([{"type": "audio_url", "audio_url": {"url": url}}])]}),
    "chat, video_url": (CHAT, lambda url: {"messages": [user([{"type": "video_url", "video_url": {"url": url}}])]}),
    "chat, a file": (
        CHAT,
        lambda url: {"messages": [user([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}])]},
    ),
    "responses, input_image": (
        RESPONSES,
        lambda url: {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]},
    ),
    "messages, an image by URL": (
        MESSAGES,
        lambda url: {"messages": [user([{"type": "image", "source": {"type": "url", "url": url}}])]},
    ),
}


@rule(
    "media by remote address is refused, never fetched: {0}",
    case="C45",
    each={k: Sibling(*v) for k, v in MEDIA.items()},
)
async def remote_media(scene: Scene, sibling: Sibling) -> None:
    async with trap() as elsewhere:
        answered = await scene.ask(await scene.open(), sibling.form, **sibling.value(elsewhere.url))
        assert answered.status == 400, (answered.status, answered.raw)
        sibling.form.error_of(answered)
        assert elsewhere.visitors == []


OWNED = [
    "prompt_embeds",
    "chat_template",
    "kv_transfer_params",
    "vllm_xargs",
    "cache_salt",
    "priority",
    "request_id",
    "truncate_prompt_tokens",
    "logits_processors",
]


@rule("{0}: fields that reach into the engine are refused or dropped", case="C45", each=FORMS)
async def engine_internals(scene: Scene, form: Form) -> None:
    episode = await scene.open()
    for name in OWNED:
        answered = await scene.ask(episode, form, **{name: 5 if name == "priority" else "x"})
        assert answered.status in (200, 400), (name, answered.raw)
    for received in await scene.received():
        assert not set(OWNED) & set(received.body), received.body


@rule("such names are the agent's own words inside messages, schemas and metadata")
async def own_words(scene: Scene) -> None:
    schema = {"type": "object", "properties": {"base_url": {"type": "string"}, "api_key": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    messages = [{**user(f'{scene.tag} {{"api_base": "http://x"}}'), "api_base": "mine"}]
    answered = await scene.ask(await scene.open(), messages=messages, tools=tools, metadata={"base_url": "x"})
    assert answered.status == 200, answered.raw
    sent = await scene.sent()
    assert (sent["tools"], sent["messages"]) == (tools, messages)


ROUTES = [
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/reset_prefix_cache",
    "/v1/reset_prefix_cache",
    "/v1/../metrics",
    "/v1/%2e%2e/metrics",
    "/v1/v1/load_lora_adapter",
    "//v1//load_lora_adapter/",
    "/e/x/v1/load_lora_adapter",
    "/t/x/v1/unload_lora_adapter",
    "/v1/chat/../load_lora_adapter",
    "/sleep",
    "/wake_up",
    "/collective_rpc",
    "/inference/v1/generate",
    "/tokenize",
    "/detokenize",
    "/v1/chat/completions/render",
    "/update_weights",
    "/server_info",
    "/invocations",
]


@rule("the engine's own routes are out of an agent's reach: {0}", case="C45", each={"POST": "POST", "GET": "GET"})
async def engine_routes(scene: Scene, method: str) -> None:
    body = json.dumps({"lora_name": scene.tag, "lora_path": "/etc"}).encode()
    for path in ROUTES:
        head = f"{method} {path} HTTP/1.1\nAuthorization: Bearer {scene.gateway.keys.agent}"
        status, raw = await scene.gateway.raw(head, body)
        assert status in (403, 404, *([405] if method == "GET" else [])), (path, status, raw[:200])
    assert await scene.engine.received(scene.tag) == []
    assert scene.tag not in await scene.engine.models()


@rule("{0}: the agent's key and headers never reach the engine, nor the engine's key the agent", case="C45", each=FORMS)
async def keys_do_not_cross(scene: Scene, form: Form) -> None:
    episode = await scene.open()
    secret = f"secret{scene.tag}"
    headers = {"X-Secret": secret, "Cookie": f"a={secret}", "X-Forwarded-For": "1.2.3.4", "OpenAI-Organization": secret}
    answered = await scene.ask(episode, form, headers=headers)
    (received,) = await scene.received()
    told = json.dumps(received.headers) + received.raw
    assert episode.api_key not in told
    assert secret not in told
    key = received.headers.get("Authorization", "").removeprefix("Bearer ")
    if key:
        assert key not in json.dumps(dict(answered.headers)) + answered.raw.decode()


@rule("a key in the query or the body counts for nothing", case="C45")
async def keys_elsewhere(scene: Scene) -> None:
    episode = await scene.open()
    body = {"model": scene.gateway.model, **CHAT.body(f"{scene.tag} hi"), "user": episode.api_key}
    for path in (f"{CHAT.path}?api_key={episode.api_key}", f"{CHAT.path}?key={episode.api_key}", CHAT.path):
        answered = await scene.gateway.send("POST", path, body)
        assert answered.status == 401, (path, answered.status)
    assert await scene.received() == []


@rule("an error never tells where the engine is", case="C45", each={"503": 503, "500": 500})
async def engine_address(scene: Scene, status: int) -> None:
    await scene.answers(Script(status=status, error={"message": "it broke", "type": "x", "code": status}))
    answered = await scene.ask(await scene.open())
    address = scene.engine.url.removeprefix("http://")
    assert address not in answered.raw.decode() + json.dumps(dict(answered.headers))


@rule("a header that stands twice with different values is refused", case="C45", needs=["episodes"])
async def doubled_headers(scene: Scene) -> None:
    one, other = await scene.open(), await scene.open()
    body = json.dumps({"model": scene.gateway.model, **CHAT.body(f"{scene.tag} hi")}).encode()
    twice = f"X-Hone-Episode: {one.episode_id}\nX-Hone-Episode: {other.episode_id}"
    head = f"POST {CHAT.path} HTTP/1.1\nAuthorization: Bearer {scene.gateway.keys.agent}\n{twice}"
    status, raw = await scene.gateway.raw(head, body)
    assert status == 400, raw[:200]
    keys = f"Authorization: Bearer {one.api_key}\nAuthorization: Bearer {other.api_key}"
    status, raw = await scene.gateway.raw(f"POST {CHAT.path} HTTP/1.1\n{keys}", body)
    assert status in (400, 401), raw[:200]
    assert await scene.received() == []


PROMPTS: dict[str, Json] = {
    "a batch": {"prompt": ["a", "b"]},
    "echo": {"echo": True},
    "best_of": {"best_of": 3, "n": 1},
}


@rule("completions whose tokens could not be told apart are refused: {0}", each=across([COMPLETIONS], PROMPTS))
async def one_prompt(scene: Scene, sibling: Sibling) -> None:
    answered = await scene.ask(await scene.open(), COMPLETIONS, **sibling.value)
    assert answered.status == 400, answered.raw
    COMPLETIONS.error_of(answered)
