"""Log lines: for people as text, for machines as one JSON object each (`HONE_LOG_FORMAT`).

A line holds paths, ids and words, never a key, a body or a query string; what could end a line or move a terminal's
cursor is escaped, so that nothing that is logged can look like a line of its own. A line that belongs to a call names
it and its episode. Python's logging is configured as uvicorn hands it on, in each worker alike.
"""

from __future__ import annotations

import copy
import enum
import logging
import re
from datetime import UTC, datetime
from typing import Any, Final, cast

import msgspec
from uvicorn.config import LOGGING_CONFIG
from uvicorn.logging import DefaultFormatter

from gateway.context import CURRENT

TEXT: Final = "%(asctime)s %(levelprefix)s %(name)s %(message)s"
ACCESS: Final = "uvicorn.access"
OURS: Final = ("hone", "tracker")
"""Loggers whose every line from INFO on is told; of others, warnings."""
CONTROL: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    10: "\\n",
    13: "\\r",
    9: "\\t",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}
ESCAPED: Final = {code: f"\\u{code:04x}" for code in (*range(127, 160), 0x2028, 0x2029)}
"""What JSON lets stand and a terminal or a reader of lines would take for more than text."""
ACCESS_ARGS: Final = 5
"""uvicorn's access line has a client, a method, a path, the version of HTTP and a status."""
KEY: Final = re.compile(r"hone-(sk-[A-Za-z0-9_-]{4}|ep-[0-9a-f]{32}-)[A-Za-z0-9_:.-]*")


class LogFormat(enum.StrEnum):
    """How log lines look."""

    TEXT = "text"
    JSON = "json"


class TextLines(DefaultFormatter):
    """A line for people; a trace below it where there is one."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        call = CURRENT.get()
        told = copy.copy(record)
        told.message = clean(_words(record)) + ("" if call is None else f" [{call.call_id}]")
        return super().formatMessage(told)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """A trace keeps its lines, each indented: none of them can look like one of ours."""
        return "\n".join(f"    {clean(line)}" for line in super().formatException(ei).splitlines())


class JsonLines(logging.Formatter):
    """A line for machines."""

    worker: str = ""
    """The worker's id, once it is known."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _masked(_words(record)),
            **_access(record),
            "worker": self.worker,
            "pid": record.process,
        }
        call = CURRENT.get()
        if call is not None:
            told |= {"call": call.call_id, "episode": call.episode_id, "tenant": call.tenant}
        if record.exc_info:
            told["trace"] = _masked(self.formatException(record.exc_info))
        return msgspec.json.encode(_encodable(told)).decode().translate(ESCAPED)


def log_config(style: LogFormat) -> dict[str, Any]:
    """What uvicorn configures logging with."""
    config = copy.deepcopy(LOGGING_CONFIG)
    lines: dict[str, Any] = {"()": JsonLines} if style is LogFormat.JSON else {"()": TextLines, "fmt": TEXT}
    config["formatters"] = {"default": lines, "access": lines}
    for name in OURS:
        config["loggers"][name] = {"handlers": ["default"], "level": "INFO", "propagate": False}
    config["root"] = {"handlers": ["default"], "level": "WARNING"}
    return config


def name_worker(worker: str) -> None:
    """From now on this process's lines name it."""
    for name in ("hone", ACCESS, "uvicorn"):
        for handler in logging.getLogger(name).handlers:
            if isinstance(handler.formatter, JsonLines):
                handler.formatter.worker = worker


def clean(text: str) -> str:
    """A text as it may stand in a line.

    >>> clean("a\\nb")
    'a\\\\nb'
    """
    return _masked(text.translate(CONTROL))


def _words(record: logging.LogRecord) -> str:
    """The message; an access line without its query string, where keys and words of users get put."""
    access = _access(record)
    if access:
        return f'{access["client"]} "{access["method"]} {access["path"]}" {access["status"]}'
    return record.getMessage()


def _access(record: logging.LogRecord) -> dict[str, Any]:
    args = record.args
    if record.name != ACCESS or not isinstance(args, tuple) or len(args) != ACCESS_ARGS:
        return {}
    client, method, path, _, status = cast("tuple[Any, ...]", args)
    shown = _masked(str(path).partition("?")[0])
    return {"client": str(client), "method": str(method), "path": shown, "status": status}


def _masked(text: str) -> str:
    return KEY.sub(lambda found: f"hone-{found[1][:2]}-***", text)


def _encodable(told: dict[str, Any]) -> dict[str, Any]:
    """Text with lone surrogates has no UTF-8."""
    return {
        name: value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
        for name, value in told.items()
    }
