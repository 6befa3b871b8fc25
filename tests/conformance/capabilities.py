"""What the gateway under test has, found by asking: rules about the rest are n/a."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from tests.conformance.forms import CHAT, FORMS, Json
from tests.conformance.gateway import Engine, Gateway
from tests.conformance.scene import Scene

ABSENT = (404, 405, 501)
"""What a server answers that knows no such path."""


async def probed(gateway: Gateway, engine: Engine) -> Gateway:
    """The gateway together with what it has."""
    found = {name async for name in _routes(gateway)}
    found |= {name for name, given in _given(gateway).items() if given}
    seen = replace(gateway, capabilities=frozenset(found))
    found |= {name async for name in _by_use(Scene(seen, engine))}
    return replace(gateway, capabilities=frozenset(found))


async def _routes(gateway: Gateway) -> AsyncIterator[str]:
    keys = gateway.keys
    for form in FORMS.values():
        body = {"model": gateway.model, **form.body("a probe")}
        if (await gateway.send("POST", form.path, body, key=keys.agent)).status not in ABSENT:
            yield form.name
    asked = [
        ("count_tokens", "POST", "/v1/messages/count_tokens", keys.agent),
        ("embeddings", "POST", "/v1/embeddings", keys.agent),
        ("models", "GET", "/v1/models", keys.agent),
        ("episodes", "POST", "/v1/episodes", keys.agent),
        ("rewards", "POST", "/v1/reward", keys.reward),
        ("runs", "GET", "/v1/runs", keys.read),
        ("groups", "GET", "/v1/groups", keys.read),
        ("policies", "GET", "/v1/policies", keys.read),
    ]
    for name, method, path, key in asked:
        empty: Json | None = {} if method == "POST" else None
        if (await gateway.send(method, path, empty, key=key)).status not in ABSENT:
            yield name


def _given(gateway: Gateway) -> dict[str, bool]:
    return {
        "other": gateway.keys.other is not None,
        "data_dir": gateway.data_dir is not None,
        "session_header": gateway.session_header is not None,
        "scopes": gateway.keys.agent != gateway.keys.reward,
    }


async def _by_use(scene: Scene) -> AsyncIterator[str]:
    """What only a call can tell."""
    if "episodes" not in scene.gateway.capabilities:
        return
    episode = await scene.open()
    path = f"/v1/episodes/{episode.episode_id}/samples"
    if (await scene.gateway.send("GET", path, key=scene.gateway.keys.read)).status == 200:
        yield "samples"
    answered = await scene.ask(episode, CHAT, key=scene.gateway.keys.agent)
    if answered.status == 200 and "x-hone-episode" in answered.headers:
        yield "implicit"
