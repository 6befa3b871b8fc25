"""Sees what a rehearsed agent asks for: the paths, and every refusal, which the gateway itself records nowhere."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, cast

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.dialects.base import object_of
from gateway.doctor.report import Refusal

MAX_BODY: Final = 64 * 1024
FAILED: Final = 400


class Watch:
    """An ASGI application around the gateway's."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.paths: Counter[str] = Counter()
        self.refusals: list[Refusal] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = f"{scope['method']} {scope['path']}"
        self.paths[path] += 1
        status = 0
        body = b""

        async def watched(message: Message) -> None:
            nonlocal status, body
            if message["type"] == "http.response.start":
                status = message["status"]
            elif status >= FAILED and len(body) < MAX_BODY:
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    self.refusals.append(_refusal(path, status, body))
            await send(message)

        await self._app(scope, receive, watched)


def _refusal(path: str, status: int, body: bytes) -> Refusal:
    """What was told, in either form of error."""
    try:
        said: object = msgspec.json.decode(body)
    except msgspec.DecodeError:
        said = {}
    error: object = cast("dict[str, Any]", said).get("error") if isinstance(said, dict) else None
    fields = object_of(error)
    return Refusal(path=path, status=status, message=str(fields.get("message", "")), param=fields.get("param"))
