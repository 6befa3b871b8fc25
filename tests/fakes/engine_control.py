"""The scripted engine's control surface: another process says over HTTP what is answered, and reads what came.

    POST /control/script    {"contains": "words", "scripts": [...], "gate": "name"?}
    POST /control/gate      {"gate": "name"}: open it
    POST /control/settings  {"load_status"?, "load_delay_s"?}
    GET  /control/received?contains=words&path=end
    POST /control/reset

A script is meant for requests whose body contains certain words, so that many callers can use one engine at once; of
several that match, the longest words win. Scripts of the same words are taken in order and the last one stays. Their
fields are those of `Script` and `Answer`; bytes are written as text of the characters U+0000 to U+00FF. A script
`{"by_adapter": true}` answers from the files of the adapter that is asked for, through a prefix cache that knows
adapters by name only: what an engine does that was given a new adapter under an old name.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import zlib
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from tests.fakes.scripted_answers import Answer, Json, Received, Script, prompt_ids_of

SHOWN = ("method", "path", "body", "arrived_s", "num_sent", "ended_s", "disconnected_s")


class Controlled(Protocol):
    """What is steered."""

    received: list[Received]
    models: dict[str, Json]
    load_status: int
    load_delay_s: float


class ByAdapter:
    """Stands for a script: the answer follows from the adapter's files."""


class Control:
    """Scripts by the words that requests contain, and the routes that give and tell them."""

    def __init__(self, engine: Controlled) -> None:
        self._engine = engine
        self._scripts: dict[str, list[Script | ByAdapter]] = {}
        self._gates: dict[str, asyncio.Event] = {}
        self._prefix_cache: dict[str, Script] = {}

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/control/script", self._add_scripts)
        app.router.add_post("/control/gate", self._open_gate)
        app.router.add_post("/control/settings", self._set)
        app.router.add_get("/control/received", self._show)
        app.router.add_post("/control/reset", self._reset)

    def take(self, received: Received) -> Script | None:
        """The next script for this request, if any words match."""
        text = received.raw.decode(errors="replace")
        matching = [words for words in self._scripts if words in text]
        if not matching:
            return None
        scripts = self._scripts[max(matching, key=len)]
        script = scripts.pop(0) if len(scripts) > 1 else scripts[0]
        return self._of_adapter(received) if isinstance(script, ByAdapter) else script

    def _of_adapter(self, received: Received) -> Script:
        """Three ids by prompt and weights; as long as a name was seen with the prompt, what it gave then."""
        name, prompt = str(received.body.get("model")), prompt_ids_of(received.body)
        key = f"{name} {prompt}"
        if key not in self._prefix_cache:
            root = self._engine.models.get(name, {}).get("root")
            weights = (Path(str(root)) / "adapter_model.safetensors").read_bytes() if root else b""
            seed = zlib.crc32(weights + repr(prompt).encode())
            ids = [200 + (seed >> shift) % 1000 for shift in (0, 8, 16)]
            answer = Answer(ids=(*ids, 99), logprobs=[-(i % 50 + 1) / 64 for i in (*ids, 99)])
            self._prefix_cache[key] = Script(prompt_ids=prompt, choices=(answer,))
        return self._prefix_cache[key]

    async def _add_scripts(self, request: web.Request) -> web.Response:
        said = await request.json()
        try:
            gate = self._gates.setdefault(said["gate"], asyncio.Event()) if said.get("gate") else None
            scripts = [script_of(one, gate) for one in said["scripts"]]
            self._scripts.setdefault(said["contains"], []).extend(scripts)
        except (KeyError, TypeError, AttributeError) as error:
            return web.json_response({"error": repr(error)}, status=400)
        return web.json_response({"scripts": len(scripts)})

    async def _open_gate(self, request: web.Request) -> web.Response:
        self._gates.setdefault((await request.json())["gate"], asyncio.Event()).set()
        return web.json_response({})

    async def _set(self, request: web.Request) -> web.Response:
        said = await request.json()
        self._engine.load_status = said.get("load_status", self._engine.load_status)
        self._engine.load_delay_s = said.get("load_delay_s", self._engine.load_delay_s)
        return web.json_response({"load_status": self._engine.load_status, "load_delay_s": self._engine.load_delay_s})

    async def _show(self, request: web.Request) -> web.Response:
        words, path = request.query.get("contains", ""), request.query.get("path", "")
        shown = [
            _shown(one)
            for one in self._engine.received
            if one.path.endswith(path) and words in one.raw.decode(errors="replace")
        ]
        return web.json_response({"received": shown, "models": self._engine.models})

    async def _reset(self, request: web.Request) -> web.Response:
        self._scripts.clear()
        self._gates.clear()
        self._prefix_cache.clear()
        self._engine.received.clear()
        self._engine.load_status, self._engine.load_delay_s = 200, 0.0
        return web.json_response({})


def script_of(said: Json, gate: asyncio.Event | None = None) -> Script | ByAdapter:
    """A script as it was sent; raises `TypeError` for a field that none has."""
    if said.get("by_adapter"):
        return ByAdapter()
    fields: dict[str, Any] = dict(said)
    if "choices" in fields:
        fields["choices"] = [Answer(**choice) for choice in fields["choices"]]
    if fields.get("raw_events") is not None:
        fields["raw_events"] = [text.encode("latin-1") for text in fields["raw_events"]]
    if fields.get("raw_body") is not None:
        fields["raw_body"] = fields["raw_body"].encode("latin-1")
    return Script(**fields, gate=gate)


def _shown(one: Received) -> Json:
    told = {name: getattr(one, name) for name in SHOWN}
    return told | {"headers": dict(one.headers), "raw": one.raw.decode("latin-1")}


def script_json(script: Script) -> Json:
    """A script as it is sent: the fields that are not left to their defaults."""
    return json.loads(json.dumps(_said(script), default=_plain))


def _said(record: Script | Answer) -> Json:
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return {name: value for name, value in values.items() if value != getattr(type(record)(), name)}


def _plain(value: object) -> object:
    if isinstance(value, Answer):
        return _said(value)
    if isinstance(value, bytes):
        return value.decode("latin-1")
    raise TypeError(f"{type(value)} is not sent")
