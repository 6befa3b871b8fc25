"""What rules find is not kept, nothing that was changed is trained, and the rest stays as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.tracker.building import RUN, chain_of, choice, episodes
from tracker.errors import BadRequest, SettingsError
from tracker.exclusion import exclusions
from tracker.redaction import Redactor, Redactors, parse_rules
from tracker.returns import call_returns
from tracker.samples import rows_of, samples_of
from tracker.settings import load_stores, parse_run
from tracker.timeline import fold
from tracker.types import Call, Reason, Redaction

MAIL = Redaction(name="mail", pattern=r"[\w.]+@[\w.]+")
SECRET = "ann@example.org"


def saying(prompt: object, answer: object, call: Call | None = None) -> Call:
    """A call with these words."""
    made = chain_of(1)[0] if call is None else call
    choices = (replace(made.choices[0], message=json.dumps(answer).encode()),)
    return replace(made, messages=(json.dumps(prompt).encode(),), choices=choices)


def redacted(call: Call, **fields: str) -> Call:
    return Redactor([replace(MAIL, **fields)]).redacted(call)


texts = st.text(max_size=20).filter(lambda text: "@" not in text)
bodies = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(bodies, bodies)
def test_what_no_rule_finds_anything_in_stays_as_it_was_byte_for_byte(prompt: object, answer: object) -> None:
    call = saying(prompt, answer)
    assert redacted(call) is call


@given(bodies, st.sampled_from(["mask", "exclude"]), st.booleans())
def test_what_is_found_is_nowhere_in_what_is_kept_however_json_wraps_it(
    inner: object, action: str, is_nested: bool
) -> None:
    words: object = {"role": "user", "content": [inner, f"to {SECRET}!"]}
    if is_nested:
        words = {"arguments": json.dumps({"b": words, SECRET: 1}, ensure_ascii=True)}
    kept = redacted(saying(words, words), action=action)
    stored = b"".join((*kept.messages, kept.request, *(one.message for one in kept.choices)))
    assert b"example" not in stored
    for body in (*kept.messages, *(one.message for one in kept.choices)):
        json.loads(body)
    assert exclusions([kept], RUN)[kept.call_id, 0] is Reason.REDACTED


def test_a_masked_prompt_hides_words_and_trains_the_answer_as_it_was_sampled() -> None:
    call = saying({"role": "user", "content": f"write to {SECRET}"}, {"content": "done"})
    kept = redacted(call)
    assert json.loads(kept.messages[0]) == {"role": "user", "content": "write to [mail]"}
    assert (kept.prompt_ids, kept.choices) == (call.prompt_ids, call.choices)
    assert len(rows_of([kept], RUN, "p")) == 1
    assert kept.detail == "redacted: mail"


def test_a_masked_answer_is_context_of_what_comes_after_it_and_not_trained() -> None:
    first, second = chain_of(2)
    calls = [redacted(saying("hi", SECRET, first)), saying("hi", "ho", second)]
    assert fold(calls, RUN).branches == ((("e-0", 0), ("e-1", 0)),)
    (sample,), excluded = samples_of(calls, RUN, {})
    assert [span.call_id for span in sample.spans] == ["e-1"]
    assert [(one.call_id, one.reason) for one in excluded] == [("e-0", Reason.REDACTED)]
    assert [row.call_id for row in rows_of(calls, RUN, "p")] == ["e-1"]
    assert {one.call_id: one.trained for one in call_returns(calls, RUN, {}, 1.0)} == {"e-0": False, "e-1": True}


@pytest.mark.parametrize("fields", [{"ids": "drop"}, {"action": "exclude"}])
def test_ids_that_may_not_be_kept_go_and_the_call_is_in_no_tree(fields: dict[str, str]) -> None:
    kept = redacted(saying(SECRET, "done"), **fields)
    assert (kept.prompt_ids, kept.choices[0].sampled_ids, kept.choices[0].logprobs) == ((), (), ())
    assert kept.reason is Reason.REDACTED
    assert call_returns([kept], RUN, {}, 1.0) == ()
    assert rows_of([kept], RUN, "p") == ()


def test_a_rule_looks_only_where_it_is_told_to() -> None:
    call = saying(SECRET, "done")
    assert redacted(call, where="answer") is call
    assert redacted(saying("hi", SECRET), where="prompt").choices[0].reason is None
    two = replace(saying("hi", SECRET), choices=(saying("hi", SECRET).choices[0], choice([7, 99], index=1)))
    assert [one.reason for one in redacted(two).choices] == [Reason.REDACTED, None]


@given(st.text(alphabet='{}[]":,\\\nu0aé\ud800@. ', max_size=30), st.booleans())
def test_no_text_breaks_it_whatever_it_looks_like(text: str, is_found: bool) -> None:
    words = "{" + text + (f" {SECRET} " if is_found else "")
    kept = redacted(saying({"content": words}, words))
    assert b"example" not in kept.messages[0] + kept.choices[0].message
    json.loads(kept.messages[0])
    assert kept.detail == "redacted: mail" if is_found else True


def test_names_of_fields_stay_and_numbers_are_looked_at() -> None:
    rule = Redaction(name="n", pattern=r"content|4111\d{4}")
    kept = Redactor([rule]).redacted(saying({"content": {"content": 41112222, "a": "4111"}}, ""))
    assert json.loads(kept.messages[0]) == {"content": {"content": "[n]", "a": "4111"}}


def test_half_a_surrogate_pair_and_escapes_hide_nothing() -> None:
    message = b'{"a":"\\ud800 ann\\u0040example.org"}'
    kept = redacted(replace(saying("", ""), messages=(message,)))
    assert json.loads(kept.messages[0])["a"].endswith(" [mail]")


def test_a_failure_that_quotes_what_is_hidden_is_redacted_too() -> None:
    kept = redacted(replace(saying("hi", ""), detail=f"no such user {SECRET}"))
    assert kept.detail == "redacted: mail; no such user [mail]"


@given(episodes())
def test_no_changed_token_is_ever_trained(calls: list[Call]) -> None:
    """Whatever the rules, a row is one that would have been trained without them."""
    said = [replace(one, messages=(json.dumps(SECRET if one.index % 2 else "hi").encode(),)) for one in calls]
    rules = [MAIL, replace(MAIL, name="b", ids="drop", where="answer")]
    left = [Redactor(rules).redacted(one) for one in said]
    assert set(rows_of(left, RUN, "p")) <= set(rows_of(calls, RUN, "p"))


@pytest.mark.parametrize(
    "rule",
    [
        {"name": "a", "pattern": "("},
        {"name": "a", "pattern": r"(a)\1"},
        {"name": "a", "pattern": "(?=a)"},
        {"name": "a", "pattern": "a*"},
        {"name": "a", "pattern": ""},
        {"name": "a", "pattern": "x" * 1001},
        {"name": "a", "pattern": "((a{100}){100}){100}"},
        {"name": "a b", "pattern": "x"},
        {"name": "a", "pattern": "x", "action": "burn"},
        {"name": "a", "pattern": "x", "where": "all"},
        {"name": "a", "pattern": "x", "ids": "some"},
        {"name": "a", "pattern": "x", "more": 1},
        {"pattern": "x"},
        "x",
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused_at_start(rule: object) -> None:
    for rules in ([rule], [{"name": "same", "pattern": "x"}] * 2, "x"):
        with pytest.raises(BadRequest):
            parse_rules(rules)
    with pytest.raises(BadRequest):
        parse_run({"run": "r", "redactions": [rule]})


def test_settings_and_runs_have_rules_and_both_hold(tmp_path: Path) -> None:
    (tmp_path / "hone.toml").write_text('[[redactions]]\nname = "mail"\npattern = "[a-z]+@[a-z.]+"\n')
    stores = load_stores({}, tmp_path)
    own = parse_run({"run": "r", "redactions": [{"name": "n", "pattern": "[0-9]{4}"}]}).redactions
    both = Redactors(stores.redactions)
    redactor = both.of(own)
    assert redactor is both.of(own)
    assert redactor is not None
    assert json.loads(redactor.redacted(saying(f"{SECRET} 1234", "")).messages[0]) == "[mail] [n]"
    assert Redactors(()).of(()) is None
    (tmp_path / "hone.toml").write_text('[[redactions]]\nname = "mail"\npattern = "("\n')
    with pytest.raises(SettingsError, match="RE2"):
        load_stores({}, tmp_path)
