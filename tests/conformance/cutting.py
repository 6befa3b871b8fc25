"""A stream is read the same however its bytes were cut, its lines ended and its events dressed."""

from __future__ import annotations

import json
from typing import Any

from tests.conformance.forms import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Form, Sibling, across
from tests.conformance.rules import rule
from tests.conformance.scene import Scene
from tests.conformance.streaming import PIECES, assert_equal_events, encoded, engine_events
from tests.fakes.scripted_answers import Script


def pieces_of(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


CUTS = {
    "one byte at a time": (1, {}),
    "two bytes at a time": (2, {}),
    "three bytes at a time": (3, {}),
    "seven bytes at a time": (7, {}),
    "in pieces of 1000 bytes": (1000, {}),
    "CRLF, one byte at a time": (1, {"end": "\r\n"}),
    "CRLF, two bytes at a time": (2, {"end": "\r\n"}),
    "CR, three bytes at a time": (3, {"end": "\r"}),
    "without the space after the colon": (5, {"prefix": "data:"}),
    "with names and ids of events": (5, {"prefix": "event: message\nid: 7\nretry: 10\ndata: "}),
    "with comments before each event": (4, {"prefix": ": ping\n\ndata: "}),
    "with a comment inside each event": (4, {"prefix": ": note\ndata: "}),
    "with everything escaped": (9, {"ascii_only": True}),
}


@rule("chat: a stream that comes {0} is read all the same", each=CUTS)
async def cut_anywhere(scene: Scene, cut: tuple[int, dict[str, Any]]) -> None:
    await assert_cut_is_read(scene, CHAT, *cut)


@rule(
    "{0} bytes at a time, inside characters and line ends: the words arrive whole",
    each=across([COMPLETIONS, RESPONSES, MESSAGES], {"1": 1, "2": 2, "5": 5}),
)
async def cut_anywhere_elsewhere(scene: Scene, sibling: Sibling) -> None:
    await assert_cut_is_read(scene, sibling.form, sibling.value, {"end": "\r\n"})


async def assert_cut_is_read(scene: Scene, form: Form, size: int, how: dict[str, Any]) -> None:
    events = engine_events(form)
    await scene.answers(Script(raw_events=pieces_of(encoded(events, **how), size)))
    answered = await scene.ask(await scene.open(), form, stream=True)
    assert answered.status == 200, answered.raw
    assert form.text(answered) == "".join(PIECES)
    assert form.has_ended(answered)
    if form in (CHAT, COMPLETIONS):
        assert_equal_events(answered, events, scene.gateway.model)


@rule("a byte order mark before the first event is no part of it")
async def byte_order_mark(scene: Scene) -> None:
    events = engine_events(CHAT)
    await scene.answers(Script(raw_events=[b"\xef\xbb\xbf" + encoded(events)]))
    answered = await scene.ask(await scene.open(), stream=True)
    assert CHAT.text(answered) == "".join(PIECES)


@rule("an event in several data lines is one event")
async def several_data_lines(scene: Scene) -> None:
    events = engine_events(CHAT)
    text = "".join("".join(f"data: {line}\n" for line in json.dumps(e, indent=1).split("\n")) + "\n" for e in events)
    await scene.answers(Script(raw_events=[text.encode() + b"data: [DONE]\n\n"]))
    answered = await scene.ask(await scene.open(), stream=True)
    assert_equal_events(answered, events, scene.gateway.model)


@rule("comments of the engine keep their bytes")
async def comments_pass(scene: Scene) -> None:
    stream = b": ping \xe2\x80\xa8 1\r\n\r\n" + encoded(engine_events(CHAT), "\r\n")
    await scene.answers(Script(raw_events=[stream]))
    answered = await scene.ask(await scene.open(), stream=True)
    assert answered.raw.startswith(b": ping \xe2\x80\xa8 1\r\n\r\n"), answered.raw[:60]


ODD = {
    "a number with 30 digits": "123456789012345678901234567890",
    "1e-7 and 1.10": "[1e-7, 1.10, -0.0]",
    "a lone surrogate": '"\\ud83d"',
    "an escaped solidus and NUL": '"\\/\\u0000"',
    "deep nesting": "[" * 60 + "]" * 60,
    "an empty name": '{"": {"": null}}',
}


@rule("unknown fields of events pass as JSON: {0}", each=ODD)
async def odd_json(scene: Scene, text: str) -> None:
    events = engine_events(CHAT)
    raw = encoded(events).replace(b'"x_engine": {"k": [1.5, null]}', b'"x_engine": ' + text.encode())
    await scene.answers(Script(raw_events=[raw]))
    answered = await scene.ask(await scene.open(), stream=True)
    assert_equal_events(answered, [{**e, "x_engine": json.loads(text)} for e in events], scene.gateway.model)
