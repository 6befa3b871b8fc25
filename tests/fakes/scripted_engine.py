"""A stand-in for the inference engine: a real HTTP server that answers exactly what a test wrote down, and notes all.

It speaks the subset of vLLM's API that Hone uses: chat completions and completions (whole and streaming, with token
ids and log-probabilities where they are asked for), `/v1/models`, `/health`, loading and unloading of adapters.

    async with ScriptedEngine() as engine:
        engine.script(Script(prompt_ids=(1, 2), choices=(Answer(ids=(3, 99), texts=("hi", "")),)))
        ...                                  # something posts to engine.url
        assert engine.calls[0].body["return_token_ids"] is True
        await engine.calls[0].disconnected.wait()

Requests take the scripts in the order of the queue, or the first rule (`when`) that matches them; rules stay. With
neither, the **default mode** answers: ids are a pure function of the prompt, assistant messages that are sent back
tokenise to the ids they were sampled as, so a conversation extends its own prefix. Default mode is what load tests
and examples run on: `python -m tests.fakes.scripted_engine --port 8601`. With `--control` another process may script it
over HTTP (`engine_control.py`).

Scored one-token answers (the check of `processed_logprobs`, probes of adapters) come from one fixed distribution per
model over a small vocabulary, with temperature applied, as an engine that reports what it samples from gives them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence

from aiohttp import web

from tests.fakes.engine_control import Control
from tests.fakes.scripted_answers import (
    Answer,
    Json,
    Received,
    Script,
    default_script,
    encode_event,
    is_scoring,
    prompt_ids_of,
    scored,
    stream_events,
    whole_answer,
)

__all__ = ["Answer", "Received", "Script", "ScriptedEngine"]

Predicate = Callable[[Received], bool]


class ScriptedEngine:
    """The server. `calls` are the completion requests in order of arrival, `received` is everything."""

    def __init__(self, *, models: Sequence[str] = ("base",), port: int = 0, control: bool = False) -> None:
        self.models: dict[str, Json] = {name: {"id": name, "object": "model", "owned_by": "fake"} for name in models}
        self.received: list[Received] = []
        self.load_status = 200
        """What `/v1/load_lora_adapter` answers."""
        self.load_delay_s = 0.0
        self.processed_logprobs = True
        """False: log-probabilities are reported before temperature, as vLLM does by default."""
        self.otherwise: Callable[[Json], Script] = default_script
        """What a request body gets for which there is neither rule nor script: a mind in place of default mode."""
        self.serves_only: str | None = None
        """Scores of every model are this one's: what adapters that land on no layer come to."""
        self._base = models[0]
        self._port = port
        self._queue: deque[Script] = deque()
        self._rules: list[tuple[Predicate, Script]] = []
        self._runner: web.AppRunner | None = None
        self._control = Control(self) if control else None

    # what tests say

    def script(self, *scripts: Script) -> None:
        """Queue answers for the next completion requests."""
        self._queue.extend(scripts)

    def when(self, predicate: Predicate, script: Script) -> None:
        """Answer every request that matches with this, whatever its order."""
        self._rules.append((predicate, script))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def calls(self) -> list[Received]:
        """Completion requests that take scripts: not the scored one-token ones of the gateway's own checks."""
        return [r for r in self.received if r.path.endswith("completions") and not is_scoring(r)]

    # life

    async def __aenter__(self) -> ScriptedEngine:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/load_lora_adapter", self._load)
        app.router.add_post("/v1/unload_lora_adapter", self._unload)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_get("/v1/models", self._list)
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        if self._control is not None:
            self._control.add_routes(app)
        app.router.add_route("*", "/{rest:.*}", self._unknown)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    # routes

    async def _note(self, request: web.Request) -> Received:
        raw = await request.read()
        try:
            body = json.loads(raw) if raw else {}
        except ValueError:
            body = {}
        received = Received(
            method=request.method,
            path=request.path,
            headers=dict(request.headers),
            raw=raw,
            body=body if isinstance(body, dict) else {},
            arrived_s=time.monotonic(),
            peer=request.transport.get_extra_info("peername") if request.transport is not None else None,
        )
        self.received.append(received)
        return received

    async def _list(self, request: web.Request) -> web.Response:
        await self._note(request)
        return web.json_response({"object": "list", "data": list(self.models.values())})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "scripted"})

    async def _tokenize(self, request: web.Request) -> web.Response:
        """Count a prompt as default mode tokenises it."""
        ids = prompt_ids_of((await self._note(request)).body)
        return web.json_response({"count": len(ids), "max_model_len": 1 << 20, "tokens": ids, "token_strs": None})

    async def _unknown(self, request: web.Request) -> web.Response:
        await self._note(request)
        return web.json_response({"error": {"message": "no such route", "type": "NotFound", "code": 404}}, status=404)

    async def _load(self, request: web.Request) -> web.Response:
        body = (await self._note(request)).body
        await asyncio.sleep(self.load_delay_s)
        if self.load_status != 200:
            error = {"message": "cannot load", "type": "InternalServerError", "code": self.load_status}
            return web.json_response({"error": error}, status=self.load_status)
        name = str(body["lora_name"])
        self.models[name] = {"id": name, "object": "model", "root": body["lora_path"], "parent": self._base}
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload(self, request: web.Request) -> web.Response:
        body = (await self._note(request)).body
        if self.models.pop(str(body["lora_name"]), None) is None:
            error = {"message": "no such adapter", "type": "NotFoundError", "code": 404}
            return web.json_response({"error": error}, status=404)
        return web.Response(text="Success")

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        received = await self._note(request)
        model = received.body.get("model")
        if model not in self.models:
            error = {"message": f"The model `{model}` does not exist.", "type": "NotFoundError", "code": 404}
            return web.json_response({"error": error}, status=404)
        if is_scoring(received):
            return web.json_response(scored(received, self.processed_logprobs, self.serves_only))
        script = self._next(received)
        try:
            if script.gate is not None:
                await script.gate.wait()
            if script.delay_s and not script.headers_first:
                await asyncio.sleep(script.delay_s)
            if script.status != 200:
                return web.json_response({"error": script.error}, status=script.status, headers=script.headers)
            answer = self._stream if received.body.get("stream") else self._whole
            response = await answer(request, received, script)
        except (asyncio.CancelledError, ConnectionError):
            received.disconnected_s = time.monotonic()
            received.disconnected.set()
            raise
        received.ended_s = time.monotonic()
        return response

    def _next(self, received: Received) -> Script:
        for predicate, script in self._rules:
            if predicate(received):
                return script
        if self._control is not None and (given := self._control.take(received)) is not None:
            return given
        return self._queue.popleft() if self._queue else self.otherwise(received.body)

    async def _whole(self, request: web.Request, received: Received, script: Script) -> web.StreamResponse:
        if script.reset_after is not None:
            _reset(request)
        if script.hang_after is not None:
            await asyncio.Event().wait()
        body = script.raw_body
        if body is None:
            body = json.dumps(whole_answer(received, script)).encode()
        return web.Response(body=body, content_type="application/json", headers=script.headers)

    async def _stream(self, request: web.Request, received: Received, script: Script) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8", **script.headers})
        await response.prepare(request)
        if script.headers_first and script.delay_s:
            await asyncio.sleep(script.delay_s)
        for number, event in enumerate([*stream_events(received, script), None]):
            if script.reset_after == number:
                await asyncio.sleep(0.02)  # what was written must be on the wire before the reset overtakes it
                _reset(request)
                return response
            if script.error_after == number:
                await response.write(encode_event({"error": script.error}))
                break
            if script.hang_after == number:
                await asyncio.Event().wait()
            if script.close_after == number or event is None:
                break
            await response.write(event)
            received.num_sent += 1
            if script.event_delay_s:
                await asyncio.sleep(script.event_delay_s)
        await response.write_eof()
        return response


def _reset(request: web.Request) -> None:
    """Close with RST, as a crashed process or a broken network path looks."""
    transport = request.transport
    if transport is None:
        return
    raw = transport.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def _serve(port: int, models: Sequence[str], control: bool) -> None:
    async with ScriptedEngine(models=models, port=port, control=control) as engine:
        print(engine.url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Serve default mode until killed."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", action="append")
    parser.add_argument("--control", action="store_true", help="let other processes script it over HTTP")
    options = parser.parse_args()
    asyncio.run(_serve(options.port, options.model or ["base"], options.control))


if __name__ == "__main__":
    main()
