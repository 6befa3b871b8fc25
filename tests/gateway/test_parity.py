"""Comparing engines with a trainer: what is said of ids and scores, and of an engine that answers only some of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.comparison import Compared, compare, refusal
from gateway.engine_api import EngineApi
from gateway.engines import EnginePool
from gateway.parity import (
    ChatRendered,
    Expected,
    Finding,
    PointGap,
    PointScored,
    TextRendered,
    gap_of,
    judge_scores,
)
from tracker.errors import Unavailable
from tracker.settings import PolicySettings

FINE = Expected(dtype="float32", noise=1e-4)
COARSE = Expected(dtype="bfloat16", noise=0.04)
Json = dict[str, Any]


def point(depth: int, **logprobs: float) -> PointScored:
    names = {int(name.removeprefix("t")): value for name, value in logprobs.items()}
    return PointScored(prompt_ids=(1,) * depth, token_ids=tuple(names), logprobs=tuple(names.values()))


def findings(gaps: list[PointGap], expected: Expected) -> dict[str, Finding]:
    return {check.what: check.finding for check in judge_scores(gaps, expected)}


def test_a_gap_is_the_mean_distance_of_what_the_trainer_would_sample() -> None:
    given_point = point(3, t5=math.log(0.6), t6=math.log(0.2))
    top = {"token_id:5": math.log(0.6) + 0.1, "token_id:6": math.log(0.2) - 0.5}
    found = gap_of(given_point, top)
    assert found is not None
    assert found.depth == 3
    assert found.gap == pytest.approx((0.6 * 0.1 + 0.2 * 0.5) / 0.8)


def test_a_token_that_is_no_alternative_of_the_engine_is_as_far_as_the_least_of_them_at_least() -> None:
    found = gap_of(point(3, t5=-0.5), {"token_id:7": -0.1, "token_id:8": -4.5})
    assert found == PointGap(depth=3, gap=4.0)
    assert gap_of(point(3, t5=-0.5), {"the": -0.1}) is None


@pytest.mark.parametrize(
    ("gaps", "expected", "found"),
    [
        ({10: 1e-5, 300: 1e-5}, FINE, "same same same"),
        ({10: 0.02, 300: 0.05}, FINE, "same same coarse"),
        ({10: 0.02, 300: 0.05}, COARSE, "same same same"),
        ({10: 0.2, 300: 0.2}, COARSE, "differs"),
        ({10: 0.01, 300: 0.2}, COARSE, "same differs"),
        ({10: 0.01, 20: 0.01, 30: 0.01, 40: 0.4, 300: 0.0}, COARSE, "differs"),
        ({10: math.inf, 300: 0.0}, COARSE, "differs"),
        ({10: 0.0}, COARSE, "same not_checked same"),
        ({}, COARSE, "not_checked not_checked not_checked"),
    ],
)
def test_scores_tell_weights_positions_and_arithmetic_apart(
    gaps: dict[int, float], expected: Expected, found: str
) -> None:
    made = [PointGap(depth=depth, gap=gap) for depth, gap in gaps.items()]
    assert " ".join(findings(made, expected).values()) == found


# A whole engine, at the HTTP seam.

TEXT = TextRendered(name="the text of words", text="hi", token_ids=(1, 2), pieces=("h", "i"))
CHAT = ChatRendered(name="the chat of a tool", messages=({"role": "user"},), token_ids=(3,), pieces=("q",))
EXPECTED = Expected(dtype="float32", noise=1e-4, texts=(TEXT,), chats=(CHAT,), points=(point(4, t5=-0.5),))
ANSWERS: dict[str, Callable[[Json], tuple[int, Json]]] = {
    "/v1/models": lambda _: (200, {"data": [{"id": "base", "max_model_len": 64}]}),
    "/tokenize": lambda body: (
        200,
        {"count": 2, "tokens": [1, 2]} if "prompt" in body else {"count": 1, "tokens": [3]},
    ),
    "/detokenize": lambda _: (200, {"prompt": "x"}),
    "/v1/completions": lambda body: (200, scored(body["temperature"])),
}


def scored(temperature: float) -> Json:
    values = {token: value / temperature for token, value in {"token_id:5": 1.0, "token_id:6": 0.567}.items()}
    total = math.log(sum(map(math.exp, values.values())))
    return {"choices": [{"logprobs": {"top_logprobs": [{name: value - total for name, value in values.items()}]}}]}


def scoring(top: Json) -> Callable[[Json], tuple[int, Json]]:
    """An engine whose alternatives after ids are these; the check of its scores asks with a text."""
    told = {"choices": [{"logprobs": {"top_logprobs": [top]}}]}
    return lambda body: (200, told) if isinstance(body["prompt"], list) else ANSWERS["/v1/completions"](body)


async def compared(**other: Callable[[Json], tuple[int, Json]]) -> Compared:
    """An engine that answers as expected, but for these paths."""
    answers = ANSWERS | {f"/{name.replace('__', '/')}": answer for name, answer in other.items()}

    def engine(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else {}
        status, answer = answers[request.url.path](body)
        return httpx.Response(status, json=answer)

    async with httpx.AsyncClient(transport=httpx.MockTransport(engine)) as http:
        pool = EnginePool(["http://e"], [PolicySettings(name="solver", model="base")], EngineApi(http, None))
        with pytest.raises(Unavailable, match="not asked yet"):
            await compare(pool, "solver", EXPECTED)
        await pool.look(())
        (found,) = await compare(pool, "solver", EXPECTED)
        return found


def told(found: Compared) -> dict[str, str]:
    return {check.what: check.finding.value for check in found.checks}


async def test_an_engine_that_answers_as_the_trainer_does_is_the_same() -> None:
    found = await compared()
    assert refusal([found]) == ""
    assert (found.engine, found.model, found.is_up) == ("http://e", "base", True)
    assert told(found) == {
        "tokenizer": "same",
        "chat template": "same",
        "base weights": "same",
        "positions (rope)": "not_checked",
        "dtype": "same",
    }


async def test_the_first_id_that_differs_is_told_with_both_texts() -> None:
    found = await compared(tokenize=lambda _: (200, {"count": 2, "tokens": [1, 9]}))
    line = refusal([found])
    assert line == (
        "The engine at http://e differs from the trainer in its tokenizer: of the text of words token 1 is 2 'i' for "
        "the trainer and 9 'x' for it. 1 more differences were found."
    )


async def test_an_engine_that_cannot_be_asked_is_said_to_be_not_checked() -> None:
    none = {"error": {"message": "no such route"}}
    found = await compared(tokenize=lambda _: (404, none))
    assert told(found)["tokenizer"] == told(found)["chat template"] == "not_checked"
    assert told(found)["base weights"] == "same"
    assert refusal([found]) == ""
    found = await compared(v1__completions=scoring({"the": -0.1, "a": -2.4}))
    assert told(found)["base weights, positions and dtype"] == "not_checked"


async def test_a_chat_that_only_the_engine_refuses_is_not_checked_and_the_others_are() -> None:
    def tokenize(body: Json) -> tuple[int, Json]:
        if "messages" in body:
            return 400, {"error": {"message": "no such role"}}
        return ANSWERS["/tokenize"](body)

    found = await compared(tokenize=tokenize)
    assert told(found)["tokenizer"] == "same"
    (check,) = [check for check in found.checks if check.what == "chat template"]
    assert (check.finding, "no such role" in check.detail) == (Finding.NOT_CHECKED, True)


async def test_other_scores_are_refused_with_their_distance() -> None:
    line = refusal([await compared(v1__completions=scoring({"token_id:5": -2.5, "token_id:6": -0.1}))])
    assert "differs from the trainer in its base weights: log-probabilities are 2 nats apart" in line
