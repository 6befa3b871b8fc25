"""What pages make of records: settings without secrets, forms of keys, outcomes in words, engines and days."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.answers import plain
from gateway.dashboard.costs import costs_of, day_bars
from gateway.dashboard.forms import parse_form
from gateway.dashboard.health import engine_view, headline, trainer_views
from gateway.dashboard.key_forms import grace_of, key_row, limits_of, wanted_of
from gateway.dashboard.masking import masked_url, settings_told, shown
from gateway.dashboard.progress import policy_progress, verdict_of
from gateway.engines import EngineState, Fitness
from gateway.readiness import Part
from gateway.settings import load
from tracker.errors import BadRequest
from tracker.outcomes import Played, Progress, outcome_of, version_outcomes
from tracker.overview import LastStep, Overview, PolicyOverview
from tracker.types import Key, KeyLimits, KeyUsage, Scope, Spent

MASTER = base64.b64encode(b"m" * 32).decode()
SECRET = "xK7-secret-words-vQ9"


def test_no_secret_of_any_setting_is_shown(tmp_path: Path) -> None:
    (tmp_path / "hone.toml").write_text(
        f"""
        vllm_command = ["serve", "--api-key", "{SECRET}"]
        [[policies]]
        name = "solver"
        model = "base"
        trainer = {{ hub_token = "{SECRET}", lr = 0.1, deep = {{ password = "{SECRET}" }} }}
        [[upstreams]]
        name = "one"
        base_url = "https://one.example/v1"
        key = "{SECRET}"
        """
    )
    env = {
        "HONE_REDIS_URL": f"redis://me:{SECRET}@redis.example:6379/0",
        "HONE_DATABASE_URL": f"postgresql://me:{SECRET}/{SECRET}@db.example/hone?password={SECRET}&sslmode=require",
        "HONE_ENGINE_KEY": SECRET,
        "HONE_ENCRYPTION_KEY": MASTER,
    }
    told = settings_told(load(env, tmp_path))
    text = json.dumps(plain(told))
    assert SECRET not in text
    assert MASTER not in text
    by_name = {setting.name: setting for setting in told}
    assert by_name["redis_url"].value == "redis://me:••••@redis.example:6379/0"
    assert by_name["database_url"].value == "postgresql://me:••••@db.example/hone?password=••••&sslmode=require"
    assert by_name["engine_key"].value == by_name["encryption_key"].value == "set, not shown"
    assert by_name["vllm_command"].value == "serve ••••"
    assert by_name["policies"].value[0]["trainer"]["lr"] == 0.1
    assert (by_name["redis_url"].is_chosen, by_name["workers"].is_chosen) == (True, False)
    assert by_name["tls_key"].value is None


@given(
    st.text(st.characters(codec="ascii", exclude_characters="\x00"), min_size=4).filter(lambda text: "•" not in text)
)
def test_no_password_of_a_url_is_shown_whatever_it_is_made_of(password: str) -> None:
    found = masked_url(f"redis://user:{password}-end@host:1/0")
    assert found == "redis://user:••••@host:1/0"


def test_a_word_that_only_sounds_like_a_secret_is_shown() -> None:
    assert shown("max_output_tokens", 7) == 7
    assert shown("key_id", "key-1") == "key-1"
    assert shown("token", "t") == shown("api_key", "t") == "set, not shown"


# keys


def test_a_form_becomes_a_key_that_is_asked_for() -> None:
    form = {"scopes": "agent,reward", "label": " mine ", "expires_in_days": "2", "token_budget": "1,000"}
    wanted = wanted_of(form, "t")
    assert (wanted.scopes, wanted.label, wanted.tenant) == ((Scope.AGENT, Scope.REWARD), "mine", "t")
    assert wanted.expires_in_s == 2 * 86_400
    assert wanted.limits == KeyLimits(token_budget=1000)


@pytest.mark.parametrize(
    "form",
    [
        {"scopes": "agent,everything"},
        {"scopes": "agent", "label": "x" * 513},
        {"scopes": "agent", "label": "\x00"},
        {"scopes": "agent", "expires_in_days": "0"},
        {"scopes": "agent", "expires_in_days": "nan"},
        {"scopes": "agent", "expires_in_days": "soon"},
        {"scopes": "agent", "expires_in_days": "1e9"},
        {"scopes": "agent", "max_concurrent": "0"},
        {"scopes": "agent", "max_concurrent": "-1"},
        {"scopes": "agent", "token_budget": "1.5"},
        {"scopes": "agent", "token_budget": "9" * 19},
        {"scopes": "agent", "requests_per_minute": "100001"},
    ],
)
def test_a_form_that_asks_for_no_key_is_refused_in_words(form: dict[str, str]) -> None:
    with pytest.raises(BadRequest):
        wanted_of(form, "t")


def test_the_old_secret_goes_on_for_hours_within_bounds() -> None:
    assert (grace_of({}), grace_of({"grace_hours": "1.5"})) == (0.0, 5400.0)
    for text in ("-1", "721", "inf", "x"):
        with pytest.raises(BadRequest):
            grace_of({"grace_hours": text})


def test_a_row_of_a_key_tells_how_much_of_its_budget_is_used_and_no_digest() -> None:
    key = Key(key_id="k", digest="d", scopes=(Scope.AGENT,), limits=KeyLimits(token_budget=100, max_concurrent=2))
    row = key_row(key, (KeyUsage(calls=2, prompt_tokens=30, sampled_tokens=20), KeyUsage()), 5)
    shares = {limit.field: limit.share for limit in row.limits}
    assert shares == {
        "requests_per_minute": None,
        "max_concurrent": None,
        "token_budget": 0.5,
        "token_budget_per_day": None,
    }
    assert row.is_good
    assert not hasattr(row, "digest")


@given(st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=5))
def test_limits_are_numbers_or_refused(form: dict[str, str]) -> None:
    assert set(limits_of(form).values()) == {None}


def test_a_form_with_too_many_fields_or_no_text_is_refused() -> None:
    for raw in (b"a&" * 200, b"\xff=1"):
        with pytest.raises(BadRequest):
            parse_form(raw)


# outcomes


def found(*scores: tuple[int, list[float]]) -> Progress:
    played = [
        Played(
            episode_id=f"{version}-{place}",
            task="add/1",
            score=score,
            spent=Spent(engine_ms=10, prompt_tokens=4, sampled_tokens=6, upstream_cost=0.5),
            versions=(("p", version),),
        )
        for version, values in scores
        for place, score in enumerate(values)
    ]
    return Progress(
        run="r",
        threshold=0.5,
        is_whole=True,
        total=outcome_of(played, 0.5),
        versions=version_outcomes(played, ["add"], 0.5),
    )


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ([], "No episode is scored"),
        ([(3, [1.0, 0.0])], "nothing to compare"),
        ([(0, [0.0]), (1, [1.0])], "too few episodes"),
        ([(0, [0.0, 0.1, 0.0]), (1, [0.9, 1.0, 0.9])], "better, beyond both"),
        ([(0, [0.9, 1.0, 0.9]), (1, [0.0, 0.1, 0.0])], "worse, beyond both"),
        ([(0, [0.0, 1.0, 0.5]), (1, [0.1, 1.0, 0.6])], "overlap"),
    ],
)
def test_versions_are_compared_in_words_that_their_intervals_allow(
    scores: list[tuple[int, list[float]]], words: str
) -> None:
    assert words in verdict_of(found(*scores).versions)


def test_a_curve_tells_all_tasks_and_families_and_rows_begin_with_the_newest_version() -> None:
    (policy,) = policy_progress(found((0, [0.0, 1.0]), (10, [1.0, 1.0]), (9, [1.0, 0.5])))
    assert [(row.version, row.family) for row in policy.rows] == [
        (10, None),
        (10, "add"),
        (9, None),
        (9, "add"),
        (0, None),
        (0, "add"),
    ]
    assert "add" in policy.legend
    assert "Reward of p by version" in policy.curve


def test_costs_are_told_for_each_success() -> None:
    costs = costs_of(found((0, [1.0, 0.0])).total)
    assert (costs.tokens, costs.tokens_per_success, costs.engine_s_per_success) == (20, 20, 0.02)
    assert costs.upstream_cost_per_success == 1.0
    none = costs_of(found((0, [0.0])).total)
    assert (none.tokens_per_success, none.upstream_cost_per_success) == (None, None)


def test_days_without_calls_are_days_too() -> None:
    drawn = day_bars({20: KeyUsage(calls=1, prompt_tokens=40, sampled_tokens=2)}, 20)
    assert drawn.count("<rect") == 14
    assert ">42<" in drawn


# health


def test_what_is_not_ready_is_named() -> None:
    parts = {"redis": Part(ready=False, detail="away"), "sql": Part(ready=True)}
    assert headline(parts) == "Not ready: Redis"


def test_a_trainer_is_at_work_as_long_as_its_lease_holds() -> None:
    last = LastStep(step=3, taken_ms=5, lag_mean=0.5, lag_max=1, reward_mean=0.7, gap_mean=0.01)
    rows = tuple(
        PolicyOverview(policy=name, active=1, versions={}, batches={}, last=last, lease_ms=lease_ms)
        for name, lease_ms in (("a", 101), ("b", 100), ("c", None))
    )
    told = trainer_views(Overview(episodes={}, groups={}, policies=rows), 100)
    assert [view.state for view in told] == ["at work", "away", "never seen"]
    assert (told[0].step, told[0].lag_max, told[0].gap) == (3, 1, 0.01)


def test_an_engine_tells_the_versions_it_has_loaded_in_order_and_what_is_not_ours() -> None:
    adapters = {"solver@10-aaaaaaaa": "/x", "solver@9-bbbbbbbb": "/y", "somebody's": "/z"}
    view = engine_view(EngineState(url="http://e", fitness=Fitness.READY, detail="", adapters=adapters), 3)
    assert [(policy, version) for policy, version, _ in view.loaded] == [("", None), ("solver", 9), ("solver", 10)]
    assert "serves every live version" in view.detail
    assert engine_view(EngineState(url="http://e"), 0).detail == "not asked yet"
