"""Text of tokens: pieces joined are the whole, whatever the cuts."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from trainer.engine.chat import Said, ToolCallReader
from trainer.engine.sampling import Draw
from trainer.engine.scheduler import Token
from trainer.engine.text import ChoiceText


def decode(ids: list[int]) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


def run(data: bytes, stop: tuple[str, ...] = ()) -> tuple[list[str], list[str | None]]:
    choice = ChoiceText(0, decode, [65, 66], stop)
    texts: list[str] = []
    reasons: list[str | None] = []
    for number, byte in enumerate(data):
        piece = choice.push(Token(Draw(byte, -1.0), "length" if number == len(data) - 1 else None))
        texts.append(piece.text)
        reasons.append(piece.finish_reason)
        if choice.is_finished:
            break
    return texts, reasons


@given(text=st.text(min_size=1))
def test_the_pieces_of_a_text_joined_are_the_text(text: str) -> None:
    texts, reasons = run(text.encode("utf-8"))
    assert "".join(texts) == text
    assert reasons[-1] == "length"
    assert all(piece == "" or "\ufffd" not in piece or "\ufffd" in text for piece in texts)


@given(
    text=st.text(alphabet="abé€", min_size=1),
    stop=st.lists(st.text(alphabet="abé€", min_size=1, max_size=4), min_size=1),
)
def test_a_text_ends_before_the_first_stop_string(text: str, stop: list[str]) -> None:
    texts, reasons = run(text.encode(), tuple(stop))
    found = [text.find(mark) for mark in stop if mark in text]
    joined = "".join(texts)
    if found:
        assert reasons[-1] == "stop"
        assert text.startswith(joined)
        assert not any(mark in joined for mark in stop)
    else:
        assert joined == text
        assert reasons[-1] == "length"


def test_bytes_that_never_become_a_character_are_shown_at_the_end() -> None:
    texts, _ = run("né".encode()[:-1])
    assert texts == ["n", "\ufffd"]


def test_the_token_that_ends_an_answer_adds_no_text() -> None:
    choice = ChoiceText(0, decode, [], ())
    assert choice.push(Token(Draw(97, 0.0))).text == "a"
    assert choice.push(Token(Draw(98, 0.0), "stop")).text == ""


def read(parts: list[str]) -> list[Said]:
    reader = ToolCallReader()
    return [reader.push(part, is_last=number == len(parts) - 1) for number, part in enumerate(parts)]


@given(cuts=st.lists(st.integers(0, 90), max_size=8))
def test_a_tool_call_is_found_however_its_text_is_cut(cuts: list[int]) -> None:
    text = 'Let me look.\n<tool_call>\n{"name": "look", "arguments": {"item": "é"}}\n</tool_call>'
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    said = read([text[a:b] for a, b in pairwise(edges)])
    calls = [call for one in said for call in one.tool_calls]
    assert [(call.index, call.name, call.arguments) for call in calls] == [(0, "look", '{"item": "é"}')]
    assert "".join(one.content for one in said).rstrip("\n") == "Let me look."


def test_two_calls_are_counted_and_broken_ones_stay_text() -> None:
    good = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    said = read([f"{good}<tool_call>oops</tool_call>{good}<tool_ca"])[0]
    assert [call.index for call in said.tool_calls] == [0, 1]
    assert said.content == "<tool_call>oops</tool_call><tool_ca"


def test_a_call_that_the_answer_ends_in_is_read_without_its_closing_mark() -> None:
    said = read(['<tool_call>{"name": "f", "arguments": {"a": 1}}'])[0]
    assert said.tool_calls[0].arguments == '{"a": 1}'
