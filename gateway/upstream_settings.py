"""Models that are no policy: which server answers them, with which key, and what their tokens cost.

`[[upstreams]]` tables of `hone.toml`, or the short form `HONE_UPSTREAMS="NAME=URL,NAME=URL"`, in which each serves
every model that nobody else names. A key stands in the file (`key`), or in a variable that the file names (`key_env`);
without either it is looked for in `HONE_UPSTREAM_NAME_KEY`. It is sent to its own server and shown nowhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from gateway.routing import UpstreamModels
from tracker.errors import SettingsError
from tracker.settings import Settings
from tracker.types import POLICY_PATTERN

_NO_NAME: Final = re.compile(r"[^A-Za-z0-9]+")


class UpstreamSettings(Settings):
    """One server of models that are not trained here."""

    name: str = Field(pattern=f"^(?:{POLICY_PATTERN})$")
    base_url: str
    """As SDKs have it: what stands before `/chat/completions`."""
    key: SecretStr | None = None
    models: tuple[str, ...] = ("*",)
    """Names, or patterns with `*`: `gpt-4o-mini`, `gpt-*`."""
    input_price: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Per million prompt tokens, in whatever currency."""
    output_price: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Per million sampled tokens."""

    @field_validator("base_url")
    @classmethod
    def _is_base_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("write the URL as SDKs have it, as https://HOST/v1")
        if parts.username is not None or parts.password is not None:
            raise ValueError("leave user and password out of the URL; the key has a setting of its own")
        return url.rstrip("/")

    @field_validator("key")
    @classmethod
    def _is_one_line(cls, key: SecretStr | None) -> SecretStr | None:
        told = "" if key is None else key.get_secret_value().strip()
        if not (told.isascii() and told.isprintable()):
            raise ValueError("a key is one line of ASCII, as it stands in a header")
        return SecretStr(told) if told else None

    @field_validator("models")
    @classmethod
    def _are_names(cls, models: tuple[str, ...]) -> tuple[str, ...]:
        if not models or not all(models):
            raise ValueError('name at least one model, or leave models out to serve all, as ["*"]')
        return models

    @property
    def served(self) -> UpstreamModels:
        """What routing must know of it."""
        return UpstreamModels(upstream=self.name, url=self.base_url, models=self.models)


def upstreams_of(value: object, env: Mapping[str, str]) -> list[dict[str, Any]]:
    """The tables with their keys filled in; raises `SettingsError` where a key that is named is missing."""
    tables = _short_form(value) if isinstance(value, str) else _tables(value)
    return [_with_key(table, env) for table in tables]


def _tables(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list | tuple):
        raise SettingsError("upstreams: write [[upstreams]] tables in hone.toml.")
    return [dict(table) for table in cast("Iterable[Mapping[str, Any]]", value)]


def _short_form(value: str) -> list[dict[str, Any]]:
    pairs = [item.partition("=") for item in value.split(",") if item.strip()]
    if not all(name.strip() and url.strip() for name, _, url in pairs):
        raise SettingsError(f"HONE_UPSTREAMS: write NAME=URL,NAME=URL instead of {value!r}.")
    return [{"name": name.strip(), "base_url": url.strip()} for name, _, url in pairs]


def _with_key(table: dict[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    named = table.pop("key_env", None)
    if named is not None and table.get("key") is not None:
        raise SettingsError("upstreams: write key or key_env, not both.")
    if table.get("key") is not None:
        return table
    variable = str(named or f"HONE_UPSTREAM_{_NO_NAME.sub('_', str(table.get('name', '')))}_KEY".upper())
    key = env.get(variable, "").strip()
    if named is not None and not key:
        raise SettingsError(f"upstreams: key_env names {variable}, which is not set.")
    return {**table, "key": key} if key else table
