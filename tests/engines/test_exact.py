"""What exact prompting needs of an engine, and what it gives an agent: the same before both engines."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from gateway.exact.engine import ExactEngine, derendering
from gateway.exact.words import ChoiceWords, Piece, pieces_of, wanted_of
from gateway.upstream import Upstream
from tests.engines.stand import FRANCE, Json, Stand
from tests.engines.test_answers import CALL, TOOLS
from tests.fakes.gateways import RunningGateway, running_gateway

ASKED: Json = {"messages": FRANCE, "temperature": 0.0, "max_tokens": 12, "logprobs": True, "return_token_ids": True}


@asynccontextmanager
async def exact_engine(stand: Stand) -> AsyncIterator[ExactEngine]:
    upstream = Upstream(stand.key, 120.0)
    try:
        yield ExactEngine(upstream, stand.url, "r")
    finally:
        await upstream.close()


@asynccontextmanager
async def gateway_with(
    stand: Stand, folder: Path, redis_url: str, prompting: str = "exact"
) -> AsyncIterator[RunningGateway]:
    """A gateway whose policy samples hot, so that little of what is said would be tokenised as it was sampled."""
    policy = f'[[policies]]\nname = "solver"\nmodel = "{stand.model}"\nprompting = "{prompting}"\n'
    (folder / "hone.toml").write_text(policy + "[policies.sampling]\ntemperature = 2.0\n")
    env = {"HONE_REDIS_URL": redis_url, "HONE_POLICIES": "", "HONE_ENGINE_KEY": stand.key}
    async with running_gateway(stand.url, folder, env) as running:
        yield running


async def test_a_chat_is_what_is_generated_from_its_rendering(stand: Stand) -> None:
    chat = await stand.ask({"messages": FRANCE, "temperature": 0, "max_tokens": 12})
    async with exact_engine(stand) as engine:
        rendered, request = await engine.render({"model": stand.model, **ASKED})
        assert tuple(rendered.token_ids) == chat.capture.prompt_ids
        request |= {"return_token_ids": True, "output_mode": "text"}
        async with engine.generate(request, streams=False) as answer:
            (event,) = [event async for events in answer.batches() for event in events]
    (piece,) = pieces_of([json.loads(event.raw)], wanted_of(ASKED))
    assert piece.token_ids == chat.first.sampled_ids
    assert [entry["logprob"] for entry in piece.entries] == pytest.approx(chat.first.logprobs, abs=0.1)
    assert piece.finish_reason == chat.first.finish_reason


@pytest.mark.parametrize("text", [f"Let me see.\n{CALL}", "plain words: naïve 日本 🙂!", "no <tool_ end"])
async def test_ids_become_the_same_words_at_once_and_piece_by_piece(stand: Stand, text: str) -> None:
    ids: list[int] = Tokenizer.from_file(str(Path(stand.model) / "tokenizer.json")).encode(text).ids
    body: Json = {"model": stand.model, **ASKED, "tools": TOOLS, "stream": True}
    whole = Piece(index=0, token_ids=(*ids, 2), entries=(), finish_reason="stop", stop_reason=None)
    words = ChoiceWords(wanted_of(body))
    content, calls = "", []
    async with exact_engine(stand) as engine:
        rendered, _ = await engine.render(body)
        said = (await engine.derender(derendering(body), rendered.token_ids, [whole]))[0]
        for place in range(0, len(whole.token_ids), 3):
            now = whole.token_ids[place : place + 3]
            finish = "stop" if place + 3 >= len(whole.token_ids) else None
            piece = Piece(index=0, token_ids=now, entries=(), finish_reason=finish, stop_reason=None)
            asked = derendering(body)
            delta, words.state = await engine.derender_piece(asked, rendered.token_ids, piece, words.state)
            part = words.part(piece, delta)
            content += part["delta"].get("content", "")
            calls += part["delta"].get("tool_calls", [])
    told = said.get("content") or ""
    assert content.strip() == told.strip()
    assert told.strip() == text.partition("\n<tool_call>")[0]
    assert "".join(call["function"].get("arguments") or "" for call in calls) == "".join(
        call["function"]["arguments"] for call in said.get("tool_calls") or []
    )
    assert part["finish_reason"] == ("tool_calls" if CALL in text else "stop")
    assert bool(calls) == (CALL in text)


async def converse(gateway: RunningGateway, streams: bool, num_turns: int = 3) -> Json:
    """An agent that sends back what it received; the timeline of its episode.

    The answers are sampled hot and are long enough that some of their words are surely tokenised otherwise.
    """
    episode = await gateway.open()
    messages: list[Json] = [{"role": "user", "content": "Tell me something."}]
    for _ in range(num_turns):
        body: dict[str, Any] = {"model": "solver", "messages": messages, "max_tokens": 48, "stream": streams}
        headers = {"Authorization": f"Bearer {episode['api_key']}"}
        answer = await gateway.admin.post("/v1/chat/completions", headers=headers, json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        content = _streamed(answer.text) if streams else answer.json()["choices"][0]["message"]["content"]
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": "Go on."}]
    return (await gateway.admin.get(f"/v1/episodes/{episode['episode_id']}/timeline")).json()


def _streamed(text: str) -> str:
    events = [json.loads(line[6:]) for line in text.split("\n\n") if line and line != "data: [DONE]"]
    return "".join(part["delta"].get("content") or "" for event in events for part in event["choices"])


@pytest.mark.parametrize("streams", [False, True])
async def test_one_branch_whatever_the_tokenizer_would_make_of_the_answers(
    stand: Stand, tmp_path: Path, redis_url: str, streams: bool
) -> None:
    async with gateway_with(stand, tmp_path, redis_url) as gateway:
        told = await converse(gateway, streams)
    assert [call["reason"] for call in told["calls"]] == [None] * 3, told
    assert len(told["branches"]) == 1
    assert [call["prompting"]["mode"] for call in told["calls"]] == ["rendered", "stored", "stored"]
    assert any(call["prompting"]["num_changed"] for call in told["calls"])


async def test_plain_prompting_shows_the_drift(stand: Stand, tmp_path: Path, redis_url: str) -> None:
    async with gateway_with(stand, tmp_path, redis_url, "plain") as gateway:
        told = await converse(gateway, streams=False)
    assert len(told["branches"]) > 1


@pytest.mark.parametrize("streams", [False, True])
async def test_choices_and_stop_strings_are_those_of_a_chat(
    stand: Stand, tmp_path: Path, redis_url: str, streams: bool
) -> None:
    async with gateway_with(stand, tmp_path, redis_url) as gateway:
        episode = await gateway.open()
        body = {"model": "solver", "messages": FRANCE, "max_tokens": 24, "n": 2, "stop": [" "], "stream": streams}
        headers = {"Authorization": f"Bearer {episode['api_key']}"}
        answer = await gateway.admin.post("/v1/chat/completions", headers=headers, json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        (call,) = (await gateway.admin.get(f"/v1/episodes/{episode['episode_id']}/timeline")).json()["calls"]
    assert (call["reason"], len(call["choices"])) == (None, 2)
    assert all(" " not in choice["message"]["content"] for choice in call["choices"])
    assert " " not in (_streamed(answer.text) if streams else answer.json()["choices"][0]["message"]["content"])
