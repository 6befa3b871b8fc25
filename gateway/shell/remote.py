"""What the shell asks a running gateway to do, over REST: swaps change engines, so no database alone can make them.

The address is that of the settings, or `HONE_BASE_URL`; the key is `HONE_API_KEY`, or the admin key that `hone up`
wrote into the data folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import httpx
import msgspec

from gateway.dialects.base import object_of
from gateway.local.keys import KEYS_FILE
from gateway.settings import GatewaySettings
from tracker.errors import HoneError, SettingsError, Unavailable
from tracker.types import Scope

TIMEOUT_S: Final = 120.0
"""Loading an adapter on every engine takes its time."""


class Refused(HoneError):
    """The gateway's own answer."""


async def ask(settings: GatewaySettings, env: Mapping[str, str], path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Post, and what was answered; raises the gateway's message."""
    return await _request(settings, env, "POST", path, dict(body))


async def read(settings: GatewaySettings, env: Mapping[str, str], path: str) -> dict[str, Any]:
    """What a page of the gateway tells; raises the gateway's message."""
    return await _request(settings, env, "GET", path, None)


async def _request(
    settings: GatewaySettings, env: Mapping[str, str], method: str, path: str, body: dict[str, Any] | None
) -> dict[str, Any]:
    url = (env.get("HONE_BASE_URL") or settings.base_url).rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {admin_key(settings.stores.data_dir, env)}"}
    try:
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT_S) as client:
            answer = await client.request(method, path, json=body)
    except httpx.TransportError as error:
        raise Unavailable(f"No gateway answers at {url} ({error}); start it, or set HONE_BASE_URL.") from error
    if not answer.is_success:
        raise Refused(_told(answer))
    return cast("dict[str, Any]", answer.json())


def admin_key(data_dir: Path, env: Mapping[str, str]) -> str:
    """Raises `SettingsError` where there is none."""
    if env.get("HONE_API_KEY"):
        return env["HONE_API_KEY"]
    path = data_dir / KEYS_FILE
    if not path.is_file():
        raise SettingsError(f"This asks a gateway: set HONE_API_KEY to an admin key ({path} is not there).")
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])[Scope.ADMIN]
    except (msgspec.MsgspecError, KeyError) as error:
        raise SettingsError(f"{path} holds no admin key; set HONE_API_KEY to one.") from error


def _told(answer: httpx.Response) -> str:
    try:
        said = object_of(object_of(answer.json()).get("error")).get("message")
    except ValueError:
        said = None
    return str(said or f"The gateway answered {answer.status_code}.")
