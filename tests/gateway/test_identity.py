"""`gateway/identity.py` and `gateway/paths.py`: which call, which episode, which path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.identity import Claims, call_id_of, episode_id_of, episode_of, scope_of, session_of, task_named
from gateway.paths import normalise
from tracker.errors import BadRequest, NotFound

HEX = st.text(alphabet="0123456789abcdef", min_size=32, max_size=32)
SLASHES = st.integers(1, 3).map(lambda n: "/" * n)


@given(st.lists(st.sampled_from(["path", "header", "key"]), min_size=1, unique=True))
def test_all_that_is_given_must_agree(given_by: list[str]) -> None:
    assert episode_of(Claims(**dict.fromkeys(given_by, "ep-1"))) == "ep-1"


@pytest.mark.parametrize(
    "claims", [Claims(path="a", header="b"), Claims(header="a", key="b"), Claims(path="a", key="b")]
)
def test_two_episodes_in_one_request_are_refused(claims: Claims) -> None:
    with pytest.raises(BadRequest, match="different episodes"):
        episode_of(claims)


def test_a_call_may_name_no_episode() -> None:
    assert episode_of(Claims()) is None


@pytest.mark.parametrize("name", ["a b", "ä", "x" * 129, "a/b", "a\n"])
def test_a_malformed_episode_id_is_refused(name: str) -> None:
    with pytest.raises(BadRequest):
        episode_of(Claims(header=name))


@given(HEX, HEX)
def test_a_call_id_leads_back_to_its_episode(episode: str, random: str) -> None:
    assert episode_id_of(call_id_of("chatcmpl-", f"ep-{episode}", random)) == f"ep-{episode}"


@pytest.mark.parametrize("call_id", ["", "chatcmpl-1", "chatcmpl-" + "0" * 32, "x" * 200])
def test_an_id_that_is_none_of_ours_leads_nowhere(call_id: str) -> None:
    assert episode_id_of(call_id) is None


@given(st.lists(SLASHES, min_size=4, max_size=4), st.integers(1, 3), st.booleans())
def test_slashes_and_repeated_versions_do_not_matter(slashes: list[str], repeats: int, trailing: bool) -> None:
    path = slashes[0] + slashes[1].join(["v1"] * repeats) + slashes[2] + "chat" + slashes[3] + "completions"
    found = normalise((path + "/" * trailing).encode())
    assert found is not None
    assert (found.route, found.episode_id) == ("chat/completions", None)


def test_prefixes_name_the_episode_or_the_task() -> None:
    by_episode, by_task = normalise(b"/e/ep-1/v1/chat/completions"), normalise(b"/t/find%20it/v1/v1/chat/completions")
    assert by_episode is not None
    assert by_episode.episode_id == "ep-1"
    assert by_task is not None
    assert by_task.task == "find it"


@pytest.mark.parametrize(
    "path", [b"/v1/../metrics", b"/v1/%2e%2e/x", b"/v1/chat%2fcompletions", b"/v1/./models", b"/a\\b"]
)
def test_paths_that_could_mean_two_things_are_refused(path: bytes) -> None:
    with pytest.raises(NotFound):
        normalise(path)


@pytest.mark.parametrize(
    "path",
    [b"/", b"/v1", b"/v1/load_lora_adapter", b"/v1/episodes", b"/e/x", b"/metrics", b"/v1/models/a/b", b"/e/x/y"],
)
def test_every_other_path_is_none_of_the_doors(path: bytes) -> None:
    assert normalise(path) is None


def test_a_model_can_be_asked_for_by_name() -> None:
    found = normalise(b"/v1/models/solver")
    assert found is not None
    assert found.model == "solver"


@given(st.lists(st.text(max_size=3), min_size=3, max_size=3), st.lists(st.text(max_size=3), min_size=3, max_size=3))
def test_two_scopes_are_equal_only_if_all_their_parts_are(one: list[str], other: list[str]) -> None:
    assert (scope_of(*one) == scope_of(*other)) == (one == other)


def test_the_first_session_field_that_a_call_has_decides() -> None:
    headers = {"x-session": "a"}
    fields = ["header:X-Other", "header:X-Session", "body:metadata.user_id"]
    body = {"metadata": {"user_id": 7}}
    by_header = session_of(fields, headers.get, body)
    assert by_header == session_of(["header:X-Session"], headers.get, {})
    assert session_of(fields, {}.get, body) == session_of(["body:metadata.user_id"], headers.get, body) != by_header
    assert session_of([], headers.get, body) is None


@pytest.mark.parametrize("body", [None, [], {}, {"a": None}, {"a": {"b": ""}}, {"a": {"b": True}}, {"a": {"b": {}}}])
def test_what_is_no_text_or_number_names_no_session(body: object) -> None:
    assert session_of(["body:a.b"], {}.get, body) is None


def test_a_field_of_several_names_joins_a_sub_agent_to_the_session_of_its_parent() -> None:
    fields = ["header:X-Parent|X-Session"]
    parent, child = {"x-session": "a"}, {"x-parent": "a", "x-session": "b"}
    assert session_of(fields, parent.get, None) == session_of(fields, child.get, None) is not None
    assert session_of(fields, {"x-session": "b"}.get, None) != session_of(fields, child.get, None)


def test_a_session_of_one_field_is_never_that_of_another() -> None:
    assert session_of(["body:a"], {}.get, {"a": "x"}) != session_of(["body:b"], {}.get, {"b": "x"})


def test_a_task_is_named_once() -> None:
    assert task_named("a", "a") == task_named(None, "a") == task_named("a", None) == "a"
    assert task_named(None, None) is None
    with pytest.raises(BadRequest, match="different tasks"):
        task_named("a", "b")
    with pytest.raises(BadRequest, match="512"):
        task_named(None, "x" * 513)
