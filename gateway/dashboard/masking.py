"""The settings as in force, without what is secret in them.

A value is secret by its type, by its name, or as a part of a URL; of a secret is told whether it is set, and nothing
else. What is shown is the frozen tree that this process runs on, not what stands in a file by now.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from pydantic import BaseModel, SecretStr

from gateway.settings import GatewaySettings
from tracker.sealing import MasterKeys
from tracker.settings import PREFIX
from tracker.types import Record

SET: Final = "set, not shown"
MASK: Final = "••••"
SECRET_NAME: Final = re.compile(r"(^|_)(key|keys|secret|secrets|password|token|credential|credentials)$")
PROGRAMS: Final = frozenset({"vllm_command"})
"""Command lines, which may name keys: their program is shown, their arguments are not."""
APART: Final = frozenset({"stores", "runs"})
"""Stores have rows of their own; runs have a page."""
PLAIN_PARAMETERS: Final = frozenset({"host", "port", "sslmode", "application_name", "ssl_cert_reqs", "protocol"})


class Setting(Record, frozen=True):
    """One setting, as a page shows it."""

    name: str
    variable: str
    value: Any
    """Plain values; text where something of it is hidden."""
    is_chosen: bool
    """Whether it differs from what it would be by itself."""


def settings_told(settings: GatewaySettings) -> list[Setting]:
    """Every setting of the gateway and of what all processes share, in the order in which they are defined."""
    return [*_fields(settings.stores), *_fields(settings)]


def masked_url(url: str) -> str:
    """A URL without password and without what its parameters say.

    >>> masked_url("redis://me:pa/s@s@host:6379/0"), masked_url("postgresql://u@/db?host=/run&password=x")
    ('redis://me:••••@host:6379/0', 'postgresql://u@/db?host=/run&password=••••')
    """
    scheme, separator, rest = url.partition("://")
    before, at, place = rest.rpartition("@")
    user, colon, _ = before.partition(":")
    named = f"{user}{colon}{MASK if colon else ''}{at}"
    path, mark, query = place.partition("?")
    return f"{scheme}{separator}{named}{path}{mark}{'&'.join(map(_masked_parameter, query.split('&')))}"


def _masked_parameter(pair: str) -> str:
    name, equals, _ = pair.partition("=")
    return pair if not equals or name in PLAIN_PARAMETERS else f"{name}={MASK}"


def _fields(model: BaseModel) -> list[Setting]:
    return [
        Setting(
            name=name,
            variable=f"{PREFIX}{name.upper()}",
            value=shown(name, getattr(model, name)),
            is_chosen=field.is_required() or getattr(model, name) != field.get_default(call_default_factory=True),
        )
        for name, field in type(model).model_fields.items()
        if name not in APART
    ]


def shown(name: str, value: object) -> Any:
    """A value under this name, as far as it may be seen."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if name in PROGRAMS:
        return _program(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, SecretStr | MasterKeys) or SECRET_NAME.search(name):
        return SET
    return _text(value) if isinstance(value, str) else _parts(name, value)


def _parts(name: str, value: object) -> Any:
    """Each part of a value under its own name."""
    if isinstance(value, BaseModel):
        return {field: shown(field, getattr(value, field)) for field in type(value).model_fields}
    if isinstance(value, Record):
        value = msgspec.structs.asdict(value)
    if isinstance(value, Mapping):
        fields = cast("Mapping[object, object]", value)
        return {str(key): shown(str(key), item) for key, item in fields.items()}
    if isinstance(value, Sequence):
        return [shown(name, item) for item in cast("Sequence[object]", value)]
    return str(value)


def _text(text: str) -> str:
    return masked_url(text) if "://" in text and not text.startswith("sqlite:") else str(text)


def _program(value: object) -> str:
    words = value.split() if isinstance(value, str) else [str(word) for word in cast("Sequence[object]", value)]
    return f"{words[0]} {MASK}" if len(words) > 1 else "".join(words)
