"""Where the gateway is and by which keys it is asked: what was given, else what the environment or `hone up` says.

    address   `base_url`, HONE_BASE_URL, http://127.0.0.1:HONE_PORT (8600)
    keys      `api_key`, `data_dir`, HONE_API_KEY, HONE_DATA_DIR, ./.hone

One API key is asked for everything, so it needs each scope that is used; a data folder has `keys.json`, with a key of
each kind, which `hone up` writes there. Whether the keys are good is the gateway's to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from tracker.errors import SettingsError
from tracker.types import Record, Scope

KEYS_FILE: Final = "keys.json"
DATA_DIR: Final = ".hone"
PORT: Final = "8600"
HOW: Final = "give api_key=, or set HONE_API_KEY, or name the folder in which `hone up` keeps its keys (data_dir=)"


class Access(Record, frozen=True):
    """A gateway and the keys for it."""

    base_url: str
    keys: str | dict[Scope, str]
    """One for everything, or one of each scope."""


def find_access(base_url: str | None, api_key: str | None, data_dir: Path | None, env: Mapping[str, str]) -> Access:
    """What is to be used; raises `SettingsError` where nothing says it."""
    return Access(base_url=_root(base_url, env), keys=_keys(api_key, data_dir, env))


def _root(given: str | None, env: Mapping[str, str]) -> str:
    url = given or env.get("HONE_BASE_URL") or f"http://127.0.0.1:{env.get('HONE_PORT') or PORT}"
    if not url.startswith(("http://", "https://")):
        raise SettingsError(f"HONE_BASE_URL: write http://HOST:PORT or https://HOST:PORT instead of {url!r}.")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _keys(api_key: str | None, data_dir: Path | None, env: Mapping[str, str]) -> str | dict[Scope, str]:
    if given := api_key or (env.get("HONE_API_KEY") if data_dir is None else None):
        key = given.strip()
        if not (key.isascii() and key.isprintable() and key):
            raise SettingsError("What was given as the key for the gateway is none: one is plain letters and digits.")
        return key
    path = (data_dir or Path(env.get("HONE_DATA_DIR") or DATA_DIR)) / KEYS_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[Scope, str])
    except FileNotFoundError as error:
        raise SettingsError(f"There is no key for the gateway, and no {path}: {HOW}.") from error
    except (OSError, msgspec.DecodeError) as error:
        raise SettingsError(f"{path} cannot be read ({error}): {HOW}.") from error
