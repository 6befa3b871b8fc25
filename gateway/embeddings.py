"""`/v1/embeddings`: passed through and not recorded, to the upstream that serves the model, else to an engine.

Nothing here is sampled, so nothing could be trained. A policy's name means its base model, as does the engine's own
name for it. What could steer the gateway or the engine is refused as on every other path; the rest of the body, and of
the answer, goes on as it came, under the model name that was asked for.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

import msgspec

from gateway.dialects.base import parse_fields, refuse_forbidden
from gateway.engines import EnginePool
from gateway.replies import ClientGone, ClientWatch, Reply
from gateway.routing import PolicyRoute, Route, UpstreamModels, UpstreamRoute, find_route
from gateway.upstream import Answer, Upstream
from gateway.upstreams import Upstreams
from tracker.errors import BadRequest, NotFound, UpstreamFailed
from tracker.types import Record

PATH: Final = "/embeddings"
OWN_WORDS: Final = frozenset({"input", "metadata"})


class EmbeddingsRequest(Record, frozen=True):
    """A request as it was understood."""

    model: str
    fields: dict[str, msgspec.Raw]


class _Known(msgspec.Struct):
    model: str
    stream: bool | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0


def parse_embeddings(body: bytes) -> EmbeddingsRequest:
    """Understand a request; raises `BadRequest`, saying what to write instead."""
    fields = parse_fields(body)
    refuse_forbidden(fields, OWN_WORDS)
    if "messages" in fields:  # engines would fetch what they point to
        raise BadRequest("messages is not supported here: write input instead.", param="messages")
    if "input" not in fields:
        raise BadRequest("input: send a text, or a list of texts.", param="input")
    try:
        known = msgspec.json.decode(body, type=_Known)
    except msgspec.ValidationError as error:
        raise BadRequest(f"{error}.", param="model") from error
    if not known.model:
        raise BadRequest("model: name one.", param="model")
    if known.stream:
        raise BadRequest("stream is not supported: embeddings come whole.", param="stream")
    return EmbeddingsRequest(model=known.model, fields=fields)


@dataclass(frozen=True, slots=True)
class Servers:
    """Whoever may serve a model."""

    engines: EnginePool
    engine: Upstream
    """The connections to engines."""
    upstreams: Upstreams
    policies: tuple[PolicyRoute, ...]
    served: tuple[UpstreamModels, ...]


class Embeddings:
    """Asks whoever serves a model."""

    def __init__(self, servers: Servers, timeout_s: float) -> None:
        self._servers = servers
        self._timeout_s = timeout_s

    async def serve(self, asked: EmbeddingsRequest, reply: Reply, client: ClientWatch) -> int:
        """Answer one request, and say how many tokens it took; the server is told to stop where the client leaves."""
        route = self._route(asked.model)
        try:
            with client.guard():
                async with asyncio.timeout(self._timeout_s), self._ask(asked, route) as answer:
                    said = await answer.whole()
        except ClientGone:
            return 0
        except TimeoutError:
            raise UpstreamFailed(f"No embeddings came within {self._timeout_s:g} s.") from None
        if isinstance(route, UpstreamRoute):
            said = self._servers.upstreams.without_key(route, said)
        fields = _fields(said)
        await reply.whole(_relabelled(fields, asked.model))
        return _tokens(fields)

    def _route(self, model: str) -> Route:
        """As for calls; the engine's own name for a base model means that one too."""
        servers = self._servers
        try:
            return find_route(model, servers.policies, servers.served)
        except NotFound:
            named = {base: policy for state in servers.engines.states() for policy, base in state.bases.items()}
            if model not in named:
                raise
            return find_route(named[model], servers.policies, servers.served)

    def _ask(self, asked: EmbeddingsRequest, route: Route) -> AbstractAsyncContextManager[Answer]:
        servers, request_id = self._servers, f"embd-{secrets.token_hex(16)}"
        if isinstance(route, UpstreamRoute):
            return servers.upstreams.ask(route, PATH, _body(asked, route.name), request_id, streams=False)
        url = servers.engines.candidates(route.name)[0]
        bases = next(state.bases for state in servers.engines.states() if state.url == url)
        body = _body(asked, bases.get(route.name, asked.model))
        return servers.engine.ask(f"{url}/v1{PATH}", body, request_id, streams=False)


def _body(asked: EmbeddingsRequest, model: str) -> bytes:
    return msgspec.json.encode({**asked.fields, "model": model})


def _fields(said: bytes) -> dict[str, msgspec.Raw]:
    try:
        return msgspec.json.decode(said, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError as error:
        raise UpstreamFailed("The answer is no JSON object.") from error


def _relabelled(fields: dict[str, msgspec.Raw], model: str) -> bytes:
    """The answer under the name that was asked for; its numbers are not touched."""
    return msgspec.json.encode({**fields, "model": model} if "model" in fields else fields)


def _tokens(fields: dict[str, msgspec.Raw]) -> int:
    """What the server says that it read; 0 where it says nothing that is understood."""
    try:
        return max(0, msgspec.json.decode(fields.get("usage", b"{}"), type=_Usage).prompt_tokens)
    except msgspec.DecodeError:
        return 0
