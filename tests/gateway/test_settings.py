"""Settings: read once, refused where they could not work."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.settings import load
from tracker.errors import BadRequest, SettingsError
from tracker.settings import load_stores, parse_run

POLICIES = {"HONE_POLICIES": "solver=MODEL"}


def test_defaults_are_a_gateway_on_loopback_with_everything_in_the_data_folder(tmp_path: Path) -> None:
    settings = load(POLICIES, tmp_path)
    assert (settings.host, settings.port, settings.base_url) == ("127.0.0.1", 8600, "http://127.0.0.1:8600")
    assert settings.is_loopback
    assert settings.stores.data_dir == tmp_path / ".hone"
    assert settings.stores.database_url == f"sqlite:///{tmp_path}/.hone/hone.db"
    assert settings.stores.redis_url is None


def test_a_variable_wins_over_the_file_and_an_empty_one_is_absent(tmp_path: Path) -> None:
    (tmp_path / "hone.toml").write_text(
        'port = 1\nhost = "::1"\n[[policies]]\nname = "a"\nmodel = "m"\naliases = ["b"]\n'
    )
    settings = load({"HONE_PORT": "2", "HONE_HOST": " "}, tmp_path)
    assert (settings.port, settings.base_url) == (2, "http://[::1]:2")
    found = settings.stores.policy("b")
    assert found is not None
    assert found.name == "a"


def test_the_short_form_names_policies(tmp_path: Path) -> None:
    stores = load_stores({"HONE_POLICIES": "solver=org/model , checker=/a/folder"}, tmp_path)
    assert [(policy.name, policy.model) for policy in stores.policies] == [
        ("solver", "org/model"),
        ("checker", "/a/folder"),
    ]


def test_session_fields_are_a_list_or_split_at_commas(tmp_path: Path) -> None:
    fields = ("header:X-Claude-Code-Session-Id", "header:session_id", "body:metadata.user_id")
    assert load({**POLICIES, "HONE_EPISODE_FROM": " , ".join(fields)}, tmp_path).episode_from == fields
    (tmp_path / "hone.toml").write_text(f"episode_from = {list(fields)}\n")
    assert load(POLICIES, tmp_path).episode_from == fields


def test_engines_are_split_and_told_apart(tmp_path: Path) -> None:
    settings = load({**POLICIES, "HONE_ENGINES": "http://a:1/, http://b:2,http://a:1"}, tmp_path)
    assert settings.engines == ("http://a:1", "http://b:2")


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({}, "HONE_POLICIES"),
        ({"HONE_POLICIES": "solver"}, "NAME=MODEL"),
        ({"HONE_POLICIES": "a=m,a=n"}, "twice"),
        ({"HONE_POLICIES": "a/b=m"}, "policies.0.name"),
        ({**POLICIES, "HONE_ENGINES": "localhost:8000"}, "http://HOST:PORT"),
        ({**POLICIES, "HONE_ENGINES": "http://a/v1"}, "without /v1"),
        ({**POLICIES, "HONE_EPISODE_FROM": "cookie:x"}, "header:NAME or body:FIELD.FIELD"),
        ({**POLICIES, "HONE_PORT": "x"}, "port"),
        ({**POLICIES, "HONE_PORT": "70000"}, "port"),
        ({**POLICIES, "HONE_DATABASE_URL": "mysql://x"}, "sqlite:///PATH or postgresql://"),
        ({**POLICIES, "HONE_REDIS_URL": "localhost"}, "redis://"),
        ({**POLICIES, "HONE_WORKERS": "0"}, "workers"),
        ({**POLICIES, "HONE_CONFIG": "missing.toml"}, "missing.toml"),
    ],
)
def test_what_cannot_work_is_refused_with_what_would(env: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load(env, tmp_path)
    assert words in caught.value.message
    assert "Value error" not in caught.value.message


def test_a_misspelt_name_in_the_file_is_refused_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "hone.toml").write_text("prot = 1\n")
    with pytest.raises(SettingsError, match="did you mean 'port'"):
        load(POLICIES, tmp_path)


def test_a_run_takes_a_bare_credit_and_its_defaults() -> None:
    run = parse_run({"run": "a", "credit": "rloo", "roles": {"judge": "drop"}, "idle_s": None})
    assert (run.credit.kind, run.group_size, run.idle_s) == ("rloo", 8, 120.0)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "run"),
        ({"run": "a b"}, "run"),
        ({"run": "a", "group_sise": 8}, "group_sise"),
        ({"run": "a", "group_size": "8"}, "group_size"),
        ({"run": "a", "group_size": 0}, "group_size"),
        ({"run": "a", "mode": "test"}, "mode"),
        ({"run": "default", "mode": "eval"}, "mode"),
        ({"run": "a", "credit": "mean"}, "credit"),
        ({"run": "a", "credit": {"std": True, "gama": 1}}, "credit"),
        ({"run": "a", "roles": {"x": "skip"}}, "roles.x"),
        ({"run": "a", "idle_s": float("nan")}, "idle_s"),
        ({"run": "a", "staleness": -1}, "staleness"),
        ({"run": "a", "truncated": "skip"}, "truncated"),
        ({"run": "a", "families": {"maths/": 1}}, "families.maths/"),
        ({"run": "a", "families": {"": 1}}, "families."),
        ({"run": "a", "families": {"maths": 0}}, "families.maths"),
        ({"run": "a", "families": {"maths": float("nan")}}, "families.maths"),
        ({"run": "a", "families": {"maths": "much"}}, "families"),
    ],
)
def test_a_run_that_makes_no_sense_is_refused_by_field(fields: dict[str, object], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_run(fields)
    assert caught.value.param == param
