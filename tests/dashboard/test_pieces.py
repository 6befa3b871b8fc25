"""The text of ids: learned from engines, remembered, and never asked for again and again where none tells."""

from __future__ import annotations

import json

import httpx
import pytest

from gateway.dashboard.pieces import PAUSE_MS, SEPARATOR, Pieces
from gateway.encoding import load_encoding
from gateway.engine_api import EngineApi
from gateway.engines import EnginePool
from gateway.scripted.tokens import START, Tokens
from tests.tracker.databases import Clock
from tracker.settings import PolicySettings

URL = "http://engine.test"
TEXTS = {1: "Hello", 2: " wörld", 3: "\n", 4: ""}


class Engine:
    """An engine that has texts, and counts how often it was asked."""

    def __init__(self, texts: dict[int, str] | Tokens) -> None:
        self.texts = texts
        self.asked: list[str] = []
        self.works = True

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"data": [{"id": "base"}]})
        if request.url.path == "/v1/completions":
            return httpx.Response(404)
        body = json.loads(request.content)
        if request.url.path == "/v1/chat/completions":
            return httpx.Response(200, json={"choices": []})
        self.asked.append(request.url.path)
        if not self.works:
            return httpx.Response(404)
        if request.url.path == "/tokenize":
            ids = self.encode(body["prompt"])
            return httpx.Response(200, json={"count": len(ids), "tokens": ids})
        return httpx.Response(200, json={"prompt": self.decode(body["tokens"])})

    def encode(self, text: str) -> list[int]:
        return [90, 91] if isinstance(self.texts, dict) else self.texts.prompt({"prompt": text})

    def decode(self, ids: list[int]) -> str:
        if not isinstance(self.texts, dict):
            return self.texts.text(ids)
        known = self.texts | {90: SEPARATOR[:2], 91: SEPARATOR[2:]}
        return "".join(known.get(token, "?") for token in ids)


async def pieces_before(engine: Engine, clock: Clock) -> Pieces:
    http = httpx.AsyncClient(transport=httpx.MockTransport(engine.answer))
    pool = EnginePool([URL], [PolicySettings(name="solver", model="base")], EngineApi(http, None))
    await pool.look_at(URL)
    return Pieces(pool, clock)


async def test_ids_are_told_apart_and_remembered() -> None:
    engine = Engine(TEXTS)
    pieces = await pieces_before(engine, Clock())
    assert await pieces.texts("solver", [3, 1, 2, 4, 1]) == TEXTS
    assert len(engine.asked) == 3
    assert await pieces.texts("solver", [1, 2]) == {1: "Hello", 2: " wörld"}
    assert len(engine.asked) == 3
    assert await pieces.texts("another", [1]) == {}


async def test_a_real_tokenizer_is_told_apart_too() -> None:
    tokens = Tokens(load_encoding())
    ids = tokens.prompt({"messages": [{"role": "user", "content": "Größe 🙂 is\n\nnot  a number"}]})
    told = await (await pieces_before(Engine(tokens), Clock())).texts("solver", ids)
    assert told.keys() == set(ids)
    assert told[START] == "<|start|>"
    whole = [token for token in ids if "\ufffd" not in told[token]]
    assert all(told[token] == tokens.text([token]) for token in whole)
    assert len(set(whole)) > 8


async def test_texts_that_cannot_be_told_apart_stay_ids() -> None:
    pieces = await pieces_before(Engine({1: f"in{SEPARATOR}between"}), Clock())
    assert await pieces.texts("solver", [1]) == {}


async def test_an_engine_that_tells_nothing_is_left_alone_for_a_while() -> None:
    engine, clock = Engine(TEXTS), Clock()
    engine.works = False
    pieces = await pieces_before(engine, clock)
    for _ in range(3):
        assert await pieces.texts("solver", [1]) == {}
    assert len(engine.asked) == 1
    engine.works, clock.at_ms = True, clock.at_ms + PAUSE_MS
    assert await pieces.texts("solver", [1]) == {1: "Hello"}


@pytest.mark.parametrize("ids", [[], [1]])
async def test_without_an_engine_there_are_no_texts(ids: list[int]) -> None:
    http = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(500)))
    pool = EnginePool([URL], [PolicySettings(name="solver", model="base")], EngineApi(http, None))
    assert await Pieces(pool, Clock()).texts("solver", ids) == {}
