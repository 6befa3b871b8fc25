"""What a call to a model that is no policy took and cost."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tiktoken

from gateway.bills import COUNTED, Bills, count_words, price
from gateway.capture import Capture
from gateway.dialects.base import Limits
from gateway.dialects.chat import Chat
from gateway.encoding import load_encoding
from gateway.routing import UpstreamRoute
from gateway.upstream_settings import UpstreamSettings

ROUTE = UpstreamRoute(name="gpt-4o-mini", url="http://u/v1", upstream="openai")
PRICED = UpstreamSettings(name="openai", base_url="http://u/v1", input_price=0.15, output_price=0.6)
FREE = UpstreamSettings(name="openai", base_url="http://u/v1")


def asked(**fields: Any) -> Any:
    body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Is the answer right?"}], **fields}
    return Chat().parse(json.dumps(body).encode(), Limits())


def answered(question: Any, **fields: Any) -> Capture:
    capture = Capture(question, takes_tokens=False)
    message = {"role": "assistant", "content": "Yes, it is right."}
    capture.feed({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], **fields})
    return capture


@pytest.fixture(scope="module")
def encoding() -> tiktoken.Encoding:
    return load_encoding()


async def test_reported_usage_is_taken_and_priced() -> None:
    question = asked()
    capture = answered(question, usage={"prompt_tokens": 2_000_000, "completion_tokens": 500_000})
    usage = await Bills([PRICED]).usage(ROUTE, question, capture)
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.counted) == (2_000_000, 500_000, "reported")
    assert usage.cost == pytest.approx(0.6)


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 3}, {"prompt_tokens": -4, "completion_tokens": 1}])
async def test_without_usage_the_words_are_counted_and_marked_so(usage: Any) -> None:
    question = asked()
    counted = await Bills([FREE]).usage(ROUTE, question, answered(question, usage=usage))
    assert counted is not None
    assert (counted.prompt_tokens, counted.completion_tokens) == (5 + 1 + 6, 6)
    assert (counted.counted, counted.cost) == (COUNTED, None)


async def test_a_call_without_an_answer_took_nothing() -> None:
    question = asked()
    assert await Bills([PRICED]).usage(ROUTE, question, Capture(question, takes_tokens=False)) is None


def test_prices_that_are_left_out_cost_nothing() -> None:
    assert price(10, 10, None, None) is None
    assert price(1_000_000, 7, 3.0, None) == 3.0


def test_the_encoding_is_tiktokens_own(encoding: tiktoken.Encoding) -> None:
    assert encoding.encode_ordinary("hello world") == [24912, 2375]
    assert (
        encoding.decode(encoding.encode_ordinary("Zürich, 東京 🗼 I'll 12345\r\n  x"))
        == "Zürich, 東京 🗼 I'll 12345\r\n  x"
    )


def test_tools_and_parts_count_and_data_of_images_does_not(encoding: tiktoken.Encoding) -> None:
    plain, _ = count_words(encoding, asked(), [])
    tool = {"type": "function", "function": {"name": "look_up", "description": "Finds a price.", "parameters": {}}}
    with_tool, _ = count_words(encoding, asked(tools=[tool]), [])
    assert with_tool > plain
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4000}}
    parts = [{"role": "user", "content": [{"type": "text", "text": "Is the answer right?"}, image]}]
    assert count_words(encoding, asked(messages=parts), [])[0] == plain
    assert count_words(encoding, asked(), [{"role": "assistant", "content": "\ud83d cut"}])[1] > 0
