"""What is said to a scripted engine in another process arrives as it was meant."""

from __future__ import annotations

import aiohttp
import pytest

from tests.conformance.gateway import Engine
from tests.fakes.engine_control import script_json, script_of
from tests.fakes.scripted_engine import Answer, Script, ScriptedEngine

SCRIPTS = [
    Script(),
    Script(prompt_ids=(1, 2), choices=(Answer(ids=(5, 99), logprobs=(-0.5, None), texts=("é\u2028", "")),)),
    Script(raw_events=[bytes(range(256)), b"\xf0\x9f"], raw_body=b"\xff", reset_after=0, headers={"Retry-After": "7"}),
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_comes_back_as_it_was_sent(script: Script) -> None:
    assert script_json(script_of(script_json(script))) == script_json(script)  # type: ignore[arg-type]


def test_a_field_that_no_script_has_is_refused() -> None:
    with pytest.raises(TypeError):
        script_of({"delay": 1})


async def test_scripts_are_taken_by_the_words_of_a_request_the_longest_first() -> None:
    async with ScriptedEngine(control=True) as engine, aiohttp.ClientSession() as client:
        control = Engine(engine.url, client)
        await control.script("hello", [Script(status=501), Script(status=502)])
        await control.script("hello there", [Script(status=503)])

        async def ask(text: str) -> int:
            async with client.post(f"{engine.url}/v1/completions", json={"model": "base", "prompt": text}) as response:
                return response.status

        assert [await ask(text) for text in ("hello", "hello", "hello", "hello there", "else")] == [
            501,
            502,
            502,
            503,
            200,
        ]
        assert [one.body["prompt"] for one in await control.received("hello there")] == ["hello there"]
