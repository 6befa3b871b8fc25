"""Upstreams in the settings: tables or the short form, keys from a variable or the file, and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.settings import GatewaySettings, load
from tracker.errors import SettingsError

POLICIES = {"HONE_POLICIES": "solver=MODEL"}
TABLE = """
[[upstreams]]
name = "openai"
base_url = "https://api.openai.com/v1/"
key_env = "MY_KEY"
models = ["gpt-4o-mini", "gpt-*"]
input_price = 0.15
output_price = 0.6
"""


def loaded(tmp_path: Path, text: str, **env: str) -> GatewaySettings:
    (tmp_path / "hone.toml").write_text(text)
    return load({**POLICIES, **env}, tmp_path)


def test_a_table_names_a_server_its_key_and_its_prices(tmp_path: Path) -> None:
    (upstream,) = loaded(tmp_path, TABLE, MY_KEY="sk-secret").upstreams
    assert (upstream.base_url, upstream.input_price) == ("https://api.openai.com/v1", 0.15)
    assert upstream.key is not None
    assert upstream.key.get_secret_value() == "sk-secret"


def test_a_key_is_taken_without_the_line_end_of_the_file_it_came_from(tmp_path: Path) -> None:
    for text, env in ((TABLE, {"MY_KEY": "sk-secret\n"}), (TABLE.replace("key_env", 'key = "sk-secret\\n" #'), {})):
        (upstream,) = loaded(tmp_path, text, **env).upstreams
        assert upstream.key is not None
        assert upstream.key.get_secret_value() == "sk-secret"


def test_no_key_is_shown(tmp_path: Path) -> None:
    settings = loaded(tmp_path, TABLE, MY_KEY="sk-secret")
    assert "sk-secret" not in repr(settings)
    assert "sk-secret" not in settings.model_dump_json()


def test_the_short_form_serves_every_model_that_nobody_else_names(tmp_path: Path) -> None:
    env = {**POLICIES, "HONE_UPSTREAMS": "my-judge=http://127.0.0.1:9/v1", "HONE_UPSTREAM_MY_JUDGE_KEY": "k"}
    (upstream,) = load(env, tmp_path).upstreams
    assert (upstream.name, upstream.base_url, upstream.models) == ("my-judge", "http://127.0.0.1:9/v1", ("*",))
    assert upstream.key is not None
    assert upstream.key.get_secret_value() == "k"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TABLE, "MY_KEY, which is not set"),
        (TABLE.replace("key_env", 'key = "k"\nkey_env'), "not both"),
        (TABLE.replace('key_env = "MY_KEY"', "").replace("https://", "ftp://"), "https://HOST/v1"),
        (TABLE.replace('key_env = "MY_KEY"', "").replace("https://", "https://me:pw@"), "user and password"),
        (TABLE.replace('key_env = "MY_KEY"', "").replace('"gpt-4o-mini"', '"solver"'), "solver stands there twice"),
        (TABLE.replace('key_env = "MY_KEY"', "") * 2, "twice"),
        (TABLE.replace('key_env = "MY_KEY"', "api_base = 1"), "api_base"),
        (TABLE.replace('key_env = "MY_KEY"', 'key = "one\\nHost: x"'), "one line of ASCII"),
        (TABLE.replace('key_env = "MY_KEY"', 'key = "schlüssel"'), "one line of ASCII"),
        (TABLE.replace('key_env = "MY_KEY"', "").replace("0.15", "-1"), "input_price"),
        ('upstreams = "x"', "NAME=URL"),
        ("upstreams = 3", r"\[\[upstreams\]\]"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        loaded(tmp_path, text)
