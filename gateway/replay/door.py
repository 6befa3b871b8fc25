"""The door of a replay: agents ask it as they ask the gateway, and get what was recorded, in their own dialect.

Any key is taken. A request that was not recorded ends the replay: it and all that follow are refused, and whoever runs
the replay is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.types import Receive, Scope, Send

from gateway.dialects.base import Asked, Dialect
from gateway.dialects.responses.dialect import ID_PREFIX, answer_items, recorded_response, with_items
from gateway.exporting.talks import DIALECTS, NO_LIMITS
from gateway.message_fold import decode_json_value
from gateway.paths import AgentPath, normalise
from gateway.replay.answers import streamed_answer, whole_answer
from gateway.replay.canonical import asking_of
from gateway.replay.recordings import Mismatch, Recordings
from gateway.replies import Reply
from gateway.sse import DONE, encode_event
from tracker.errors import BadRequest, HoneError, NotFound
from tracker.types import Call

ROUTES: Final[Mapping[str, str]] = {
    "chat/completions": "chat",
    "completions": "completions",
    "messages": "messages",
    "responses": "responses",
}
NO_RETRY: Final = ("x-should-retry", "false")


class ReplayDoor:
    """An ASGI application; `failed` is set at the first mismatch."""

    def __init__(self, recordings: Recordings) -> None:
        self._recordings = recordings
        self.failed = asyncio.Event()
        self.mismatch: HoneError | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        reply = Reply(send)
        try:
            await self._answer(scope, receive, reply)
        except HoneError as error:
            reply.add_header(*NO_RETRY)
            await reply.fail(error)

    async def _answer(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        path = normalise(scope.get("raw_path") or str(scope["path"]).encode())
        if path is None or (path.route not in ROUTES and path.route != "models"):
            raise NotFound(
                "A replay answers /v1/chat/completions, /v1/completions, /v1/responses and /v1/messages alone."
            )
        if scope["method"] != "POST":
            await reply.whole(self._shown(path))
            return
        dialect = DIALECTS[ROUTES[path.route]][0]
        reply.form = dialect
        await self._serve(dialect, await _read(receive), reply)

    async def _serve(self, dialect: Dialect, body: bytes, reply: Reply) -> None:
        asked = self._expanded(dialect.parse(body, NO_LIMITS))
        call = self._take(dialect, asked)
        reply.add_header("x-hone-call", call.call_id)
        reply.add_header("x-hone-episode", call.episode_id)
        writer = dialect.writer(asked, call.call_id)
        if not asked.streams:
            await reply.whole(writer.whole(whole_answer(call, asked)))
            return
        for event in streamed_answer(call, asked):
            await reply.events(writer.event(event))
        await reply.events(writer.done(encode_event(DONE)), last=True)

    def _take(self, dialect: Dialect, asked: Asked) -> Call:
        if self.mismatch is not None:
            raise self.mismatch
        try:
            return self._recordings.take(asking_of(dialect.name, asked.request, asked.messages))
        except Mismatch as mismatch:
            self.mismatch = mismatch
            self.failed.set()
            raise

    def _expanded(self, asked: Asked) -> Asked:
        """The request with what it continues by name."""
        if asked.previous is None:
            return asked
        call = self._recordings.find(asked.previous)
        message: Any = decode_json_value(call.choices[0].message)
        if not isinstance(message, dict):
            raise BadRequest(f"The recorded answer {asked.previous!r} is no message.")
        items = answer_items(message, call.call_id)  # pyright: ignore[reportUnknownArgumentType]
        return with_items(asked, (*call.messages, *items, *asked.messages))

    def _shown(self, path: AgentPath) -> bytes:
        if path.response is not None and path.response.startswith(ID_PREFIX):
            return recorded_response(self._recordings.find(path.response))
        if path.route != "models":
            raise NotFound("Write POST instead of GET.")
        cards = [{"id": name, "object": "model", "created": 0, "owned_by": "hone"} for name in self._recordings.models]
        return msgspec.json.encode({"object": "list", "data": cards})


async def _live(receive: Receive, send: Send) -> None:
    while True:
        asked = (await receive())["type"]
        await send({"type": f"{asked}.complete"})
        if asked == "lifespan.shutdown":
            return


async def _read(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)
