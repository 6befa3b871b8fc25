"""The engine over HTTP: a raw ASGI app with the routes of vLLM that Hone uses.

The rule: every error is JSON in vLLM's form; an answer whose client has left is given up at once, whole or streamed
(`receive()` is watched: `send()` never fails). What a request means is left to `service.py`.
"""

import asyncio
import hmac
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tracker.errors import BadRequest, HoneError, NotFound, TooLarge, Unauthorized, Unavailable
from trainer.engine.answers import usage
from trainer.engine.config import EngineConfig
from trainer.engine.protocol import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    LoadBody,
    UnloadBody,
    parse,
    parse_tokenize,
)
from trainer.engine.service import Answer, Service
from trainer.engine.token_bodies import DerenderBody, GenerateTokensBody
from trainer.engine.weights import load_model, load_tokenizer
from trainer.models import resolve_model

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_BODY_BYTES = 32 * 1024 * 1024
_KINDS = {400: "BadRequestError", 401: "AuthenticationError", 404: "NotFoundError", 503: "ServiceUnavailableError"}
_log = logging.getLogger(__name__)


def create_app(settings: EngineConfig) -> "EngineApp":
    """Return the app; the model is loaded when the server starts it."""
    return EngineApp(settings)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request on its way: what came in and how to answer."""

    body: bytes
    receive: Receive
    send: Send


class EngineApp:
    """The ASGI application. Between start and shutdown it has a `Service`."""

    def __init__(self, settings: EngineConfig) -> None:
        self._settings = settings
        self._service: Service | None = None
        self._routes: dict[tuple[str, str], Callable[[Service, Exchange], Awaitable[None]]] = {
            ("GET", "/health"): _health,
            ("GET", "/ping"): _health,
            ("GET", "/load"): _load,
            ("GET", "/version"): _version,
            ("GET", "/v1/models"): _models,
            ("POST", "/v1/chat/completions"): _chat,
            ("POST", "/v1/completions"): _completion,
            ("POST", "/v1/chat/completions/render"): _render,
            ("POST", "/inference/v1/generate"): _generate_tokens,
            ("POST", "/v1/chat/completions/derender"): _derender,
            ("POST", "/tokenize"): _tokenize,
            ("POST", "/detokenize"): _detokenize,
            ("POST", "/v1/load_lora_adapter"): _load_adapter,
            ("POST", "/v1/unload_lora_adapter"): _unload_adapter,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "lifespan":
                await self._live(receive, send)
            case "http":
                await self._serve(scope, receive, send)
            case _:
                await send({"type": "websocket.close", "code": 1000})

    async def _live(self, receive: Receive, send: Send) -> None:
        """Load the model at start, stop its thread at the end."""
        await receive()
        try:
            service = await asyncio.to_thread(load_service, self._settings)
        except (HoneError, OSError, ValueError) as error:
            # OSError and ValueError are what transformers raises for a model it does not find or understand.
            await send({"type": "lifespan.startup.failed", "message": f"the engine cannot start: {error}"})
            return
        service.worker.start(asyncio.get_running_loop())
        self._service = service
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def stop(self) -> None:
        """End the model's thread; requests in flight are answered with an error. Stopping twice is no error."""
        if self._service is not None:
            await self._service.worker.stop()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if self._service is None:
                raise Unavailable("the engine has not started yet")
            self._authorise(scope)
            handle = self._routes.get((scope["method"], scope["path"]))
            if handle is None:
                raise NotFound(f"there is no {scope['method']} {scope['path']} here")
            await handle(self._service, Exchange(await _read(receive), receive, send))
        except _ClientGoneError:
            _log.debug("the client of %s left", scope["path"])
        except HoneError as error:
            await _send_json(send, error.status, _error(error))

    def _authorise(self, scope: Scope) -> None:
        if self._settings.key is None or scope["path"] in {"/health", "/ping"}:
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(given, f"Bearer {self._settings.key}".encode()):
            raise Unauthorized("this engine needs its key: Authorization: Bearer HONE_ENGINE_KEY")


def load_service(settings: EngineConfig) -> Service:
    """Load model and tokenizer; this takes seconds and blocks."""
    path = resolve_model(settings.model, settings.cache_dir)
    return Service(load_model(path, settings.dtype), load_tokenizer(path), settings)


async def _health(service: Service, exchange: Exchange) -> None:
    await _send(exchange.send, 200 if service.worker.is_alive else 503, b"text/plain", b"")


async def _load(service: Service, exchange: Exchange) -> None:
    """Say how many sequences are in the scheduler, for each version that can be asked."""
    loads = await service.worker.loads()
    by_version = [{"model": load.version, "running": load.num_running, "waiting": load.num_waiting} for load in loads]
    total = sum(load.num_running + load.num_waiting for load in loads)
    await _send_json(exchange.send, 200, {"server_load": total, "versions": by_version})


async def _version(_: Service, exchange: Exchange) -> None:
    parts = {name: metadata.version(name) for name in ("torch", "transformers", "peft")}
    await _send_json(exchange.send, 200, {"version": "hone-embedded", **parts})


async def _models(service: Service, exchange: Exchange) -> None:
    await _send_json(exchange.send, 200, {"object": "list", "data": service.models()})


async def _load_adapter(service: Service, exchange: Exchange) -> None:
    body = parse(exchange.body, LoadBody)
    await service.load_adapter(body.lora_name, Path(body.lora_path))
    text = f"Success: LoRA adapter '{body.lora_name}' added successfully."
    await _send(exchange.send, 200, b"text/plain; charset=utf-8", text.encode())


async def _unload_adapter(service: Service, exchange: Exchange) -> None:
    body = parse(exchange.body, UnloadBody)
    await service.worker.unload_adapter(body.lora_name)
    text = f"Success: LoRA adapter '{body.lora_name}' removed successfully."
    await _send(exchange.send, 200, b"text/plain; charset=utf-8", text.encode())


async def _chat(service: Service, exchange: Exchange) -> None:
    await _generate(service.answer(parse(exchange.body, ChatBody)), exchange)


async def _completion(service: Service, exchange: Exchange) -> None:
    await _generate(service.answer(parse(exchange.body, CompletionBody)), exchange)


async def _tokenize(service: Service, exchange: Exchange) -> None:
    await _send_json(exchange.send, 200, service.tokenize(parse_tokenize(exchange.body)))


async def _detokenize(service: Service, exchange: Exchange) -> None:
    await _send_json(exchange.send, 200, service.detokenize(parse(exchange.body, DetokenizeBody)))


async def _render(service: Service, exchange: Exchange) -> None:
    await _send_json(exchange.send, 200, service.render(parse(exchange.body, ChatBody)))


async def _generate_tokens(service: Service, exchange: Exchange) -> None:
    await _generate(service.generation(parse(exchange.body, GenerateTokensBody)), exchange)


async def _derender(service: Service, exchange: Exchange) -> None:
    wording = service.wording(parse(exchange.body, DerenderBody))
    await _send_json(exchange.send, 200, wording.chunk() if wording.body.stream else wording.whole())


async def _generate(answer: Answer, exchange: Exchange) -> None:
    """Generate an answer as long as its client is there."""
    write = _stream if answer.is_streamed else _whole
    work = asyncio.create_task(write(answer, exchange.send))
    gone = asyncio.create_task(_until_gone(exchange.receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise _ClientGoneError
        await work
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)
        # Closing runs what takes the sequences out of the scheduler.
        await answer.pieces.aclose()


async def _whole(answer: Answer, send: Send) -> None:
    await _send_json(send, 200, await answer.whole())


async def _stream(answer: Answer, send: Send) -> None:
    """Send the answer as server-sent events. The status waits for the first piece, so that a refusal has its own."""
    pieces = answer.pieces
    first = await anext(pieces)
    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for chunk in [*answer.shape.opening(), answer.shape.chunk(first)]:
        await _send_event(send, chunk)
    num_sampled = 1
    try:
        async for piece in pieces:
            num_sampled += 1
            await _send_event(send, answer.shape.chunk(piece))
    except Unavailable as error:
        await _send_event(send, _error(error))
    else:
        if answer.wanted.has_usage:
            counted = usage(len(answer.wanted.prompt_ids), num_sampled)
            await _send_event(send, {**answer.shape.envelope([]), "usage": counted})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


async def _send_event(send: Send, value: dict[str, Any]) -> None:
    await send({"type": "http.response.body", "body": b"data: " + _json(value) + b"\n\n", "more_body": True})


class _ClientGoneError(Exception):
    """Nobody is there to answer any more."""


async def _read(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientGoneError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            raise TooLarge(f"the body is larger than {MAX_BODY_BYTES} bytes")
        if not message.get("more_body", False):
            return b"".join(parts)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _error(error: HoneError) -> dict[str, Any]:
    kind = _KINDS.get(error.status, "BadRequestError" if isinstance(error, BadRequest) else "InternalServerError")
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.status}}


def _json(value: dict[str, Any]) -> bytes:
    # ASCII only: some readers of events take the line separators of Unicode for line breaks.
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


async def _send_json(send: Send, status: int, value: dict[str, Any]) -> None:
    await _send(send, status, b"application/json", _json(value))


async def _send(send: Send, status: int, content_type: bytes, body: bytes) -> None:
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
