"""Nesting is bounded before anything that goes into a body by recursion sees it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.base import Limits
from gateway.dialects.chat import Chat
from gateway.dialects.completions import Completions
from gateway.dialects.messages.dialect import Messages
from gateway.dialects.responses.dialect import Responses
from gateway.embeddings import parse_embeddings
from gateway.json_depth import MAX_DEPTH, is_deep, refuse_deep
from gateway.routes.bodies import decode_strictly
from tracker.errors import BadRequest

TEXT = st.text(alphabet=st.sampled_from('[]{}"\\é x\n'), max_size=8)
VALUES = st.recursive(
    st.one_of(TEXT, st.integers(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=40,
)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(VALUES, st.integers(0, 6), st.booleans(), st.sampled_from([None, 1]))
def test_depth_is_told_from_bytes_as_from_values(value: Any, limit: int, plain: bool, indent: int | None) -> None:
    raw = json.dumps(value, ensure_ascii=plain, indent=indent).encode()
    assert is_deep(raw, limit) == (depth_of(value) > limit)
    try:
        refuse_deep(raw, limit)
    except BadRequest:
        assert depth_of(value) > limit
    else:
        assert depth_of(value) <= limit


@given(st.binary(max_size=40).map(lambda noise: noise * 5))
def test_what_is_no_json_never_breaks_it(raw: bytes) -> None:
    assert is_deep(raw, 1) in (True, False)


READERS = {
    "chat": lambda body: Chat().parse(body, Limits()),
    "completions": lambda body: Completions().parse(body, Limits()),
    "messages": lambda body: Messages().parse(body, Limits()),
    "responses": lambda body: Responses().parse(body, Limits()),
    "embeddings": parse_embeddings,
    "other bodies": decode_strictly,
}
OPENERS = {"lists": ("[", "]"), "objects": ('{"a":', "}"), "never closed": ("[", ""), "both": ('[{"":', "}]")}


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 990, 100_000])
def test_every_body_that_is_too_deep_is_refused_by_name(reader: str, opener: str, levels: int) -> None:
    start, end = OPENERS[opener]
    body = ('{"model":"m","messages":' + start * levels + "1" + end * levels + "}").encode()
    with pytest.raises(BadRequest, match=f"more than {MAX_DEPTH} deep"):
        READERS[reader](body)


def test_brackets_that_agents_write_are_no_nesting() -> None:
    words = "[{" * 10_000
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": words}]}).encode()
    assert Chat().parse(body, Limits()).messages
