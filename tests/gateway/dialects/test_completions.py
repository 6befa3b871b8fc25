"""The completions dialect: its prompts, its refusals, and its way through the door."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.dialects.base import Asked, Limits, Target
from gateway.dialects.completions import Completions
from tests.fakes.running import running_door
from tests.fakes.scripted_engine import Answer, Script, ScriptedEngine
from tracker.errors import BadRequest


def parse(**fields: Any) -> Asked:
    return Completions().parse(json.dumps({"model": "solver", "prompt": "once", **fields}).encode(), Limits())


@pytest.mark.parametrize("prompt", ["once", [1, 2, 3], ["once"], [[1, 2]]])
def test_one_prompt_goes_on_as_it_was_written(prompt: Any) -> None:
    asked = parse(prompt=prompt)
    body = json.loads(Completions().engine_body(asked, Target(model="m", sampling=asked.sampling, overrides=True)))
    assert body["prompt"] == prompt
    assert json.loads(asked.messages[0]) == prompt
    assert (body["logprobs"], body["return_token_ids"], "max_completion_tokens" in body) == (1, True, False)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": ["a", "b"]},
        {"prompt": [[1], [2]]},
        {"prompt": []},
        {"prompt": 5},
        {"prompt": {"a": 1}},
        {"echo": True},
        {"best_of": 3},
        {"logprobs": True},
        {"logprobs": 99},
        {"n": 9},
        {"max_tokens": 0},
        {"max_tokens": 2**64},
        {"seed": -(2**64)},
        {"prompt_embeds": "x"},
    ],
)
def test_what_cannot_be_honoured_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        parse(**fields)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.slow
async def test_a_completion_is_recorded_and_shows_only_what_was_asked_for(tmp_path: Path, streams: bool) -> None:
    async with ScriptedEngine() as engine, running_door(engine, tmp_path) as door:
        episode = await door.open_episode()
        engine.script(Script(prompt_ids=(1, 2), choices=(Answer(ids=(5, 99), logprobs=(-0.5, -0.25)),)))
        async with door.client.post(
            f"{door.url}/v1/completions",
            headers=door.headers(episode),
            json={"model": "gpt", "prompt": "once", "stream": streams},
        ) as response:
            raw = await response.read()
        assert response.status == 200
        assert b"token_ids" not in raw
        assert b"logprobs" not in raw
        (call,) = await door.calls(episode)
        assert call.call_id.startswith("cmpl-")
        assert call.call_id.encode() in raw
        assert (call.dialect, call.prompt_ids) == ("completions", (1, 2))
        (choice,) = call.choices
        assert (choice.sampled_ids, choice.logprobs, choice.reason) == ((5, 99), (-0.5, -0.25), None)
        assert json.loads(choice.message) == "t5 "
