"""Log lines: whole objects, nothing that ends a line, no keys, and the call that they belong to."""

from __future__ import annotations

import json
import logging
import logging.config
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.context import CURRENT, CallContext
from gateway.logs import ACCESS, CONTROL, JsonLines, LogFormat, TextLines, clean, log_config

SECRET = "hone-sk-abcdefghijklmnopqrstuvwxyz012345"
SESSION = "hone-ep-" + "a" * 32 + "-" + "b" * 32 + "-default"


def record(message: str, *args: object, name: str = "hone.app") -> logging.LogRecord:
    return logging.LogRecord(name, logging.INFO, __file__, 1, message, args, None)


def as_json(told: logging.LogRecord) -> dict[str, object]:
    return json.loads(JsonLines().format(told))


@pytest.fixture
def in_a_call() -> Iterator[None]:
    token = CURRENT.set(CallContext(call_id="chatcmpl-1", episode_id="ep-1", tenant="acme"))
    yield
    CURRENT.reset(token)


@given(st.text())
def test_a_line_is_one_line_whatever_was_logged(text: str) -> None:
    for lines in (JsonLines(), TextLines("%(message)s")):
        line = lines.format(record("%s", text))
        assert len(line.splitlines()) <= 1
        assert not any(chr(code) in line for code in CONTROL)


@given(st.text())
def test_a_line_of_json_gives_the_message_back(text: str) -> None:
    sent = text.encode("utf-8", "backslashreplace").decode()
    assert as_json(record("%s", text))["message"] == sent


def test_keys_are_masked_wherever_they_stand() -> None:
    for key in (SECRET, SESSION):
        for line in (JsonLines().format(record("no %s here", key)), TextLines("%(message)s").format(record(key))):
            assert key not in line
            assert key[10:30] not in line


def test_keys_in_a_trace_are_masked_and_its_lines_are_no_lines_of_ours() -> None:
    try:
        raise ValueError(f"a\nINFO {SECRET}")
    except ValueError:
        trouble = logging.LogRecord("hone.app", logging.ERROR, __file__, 1, "failed", (), sys.exc_info())
    told = as_json(trouble)
    assert SECRET not in str(told)
    assert "ValueError" in str(told["trace"])
    trouble.exc_text = None
    line = TextLines("%(message)s").format(trouble)
    assert SECRET not in line
    assert not any(part.startswith("INFO") for part in line.splitlines())


@pytest.mark.usefixtures("in_a_call")
def test_a_line_names_the_call_that_it_belongs_to() -> None:
    told = as_json(record("recorded"))
    assert (told["call"], told["episode"], told["tenant"]) == ("chatcmpl-1", "ep-1", "acme")
    assert "chatcmpl-1" in TextLines("%(message)s").format(record("recorded"))


def test_an_access_line_has_fields_and_no_query() -> None:
    line = record('%s - "%s %s HTTP/%s" %d', "1.2.3.4:5", "GET", f"/v1/runs?key={SECRET}", "1.1", 200, name=ACCESS)
    told = as_json(line)
    assert (told["method"], told["path"], told["status"]) == ("GET", "/v1/runs", 200)
    assert "key=" not in TextLines("%(message)s").format(line)


def test_a_key_in_a_path_is_masked_in_every_field() -> None:
    for key in (SECRET, SESSION):
        line = record('%s - "%s %s HTTP/%s" %d', "1.2.3.4:5", "GET", f"/e/{key}/v1/runs", "1.1", 404, name=ACCESS)
        assert key[10:30] not in JsonLines().format(line)
        assert key[10:30] not in TextLines("%(message)s").format(line)


def test_a_clean_text_shows_what_it_would_have_done() -> None:
    assert clean("a\r\n\x1b[31mb\u2028") == "a\\r\\n\\x1b[31mb\\u2028"


@pytest.mark.parametrize("style", list(LogFormat))
def test_the_configuration_is_one_that_python_takes(style: LogFormat) -> None:
    config = {**log_config(style), "disable_existing_loggers": False}
    config["loggers"] = {f"tried.{name}": value for name, value in config["loggers"].items()}
    del config["root"]
    logging.config.dictConfig(config)
    for name in config["loggers"]:
        for handler in logging.getLogger(name).handlers:
            assert isinstance(handler.formatter, JsonLines if style is LogFormat.JSON else TextLines)
