"""What chat completions and completions share on the way back: OpenAI's errors, and events that pass as they are.

An event goes on as the engine sent it, with the gateway's id and the model name that was asked for. Pure.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gateway.dialects.base import Asked, Json
from gateway.message_fold import encode_json
from gateway.pieces import Piece
from gateway.sse import encode_event
from tracker.errors import HoneError

MAX_MESSAGE_CHARS: Final = 4_000
_ENCODER: Final = msgspec.json.Encoder()
_PIECE_END: Final = b'},"finish_reason":null}]}\n\n'


def error_body(error: HoneError) -> Json:
    """An error in OpenAI's form; a message repeats no more of what was sent than a person reads."""
    message = error.message[:MAX_MESSAGE_CHARS]
    return {"error": {"message": message, "type": error.kind, "param": error.param, "code": error.code}}


class OpenAIForm:
    """Errors as OpenAI tells them."""

    def error_body(self, error: HoneError) -> Json:
        """The JSON of an answer that is no success."""
        return error_body(error)

    def error_event(self, error: HoneError) -> bytes:
        """The event that ends a stream which had begun."""
        return encode_event(msgspec.json.encode(error_body(error)))


class PassingWriter:
    """Hands the engine's events on, under the agent's own names."""

    __slots__ = ("_call_id", "_frame", "_head", "_model")

    def __init__(self, asked: Asked, call_id: str) -> None:
        self._call_id = call_id
        self._model = asked.model
        self._frame: tuple[str, int, int] | None = None
        self._head = b""

    @property
    def error_form(self) -> None:
        """Its errors are those of the dialect."""

    def event(self, said: Json) -> bytes:
        """The event, relabelled."""
        return encode_event(self.whole(said))

    def piece(self, piece: Piece) -> bytes:
        """The words of an event that holds nothing else for the agent, relabelled."""
        [choice] = piece.choices
        frame = (piece.object, piece.created, choice.index)
        if frame != self._frame:
            self._frame, self._head = frame, self._opening(*frame)
        return b"".join((self._head, _ENCODER.encode(choice.delta.content), _PIECE_END))

    def _opening(self, kind: str, created: int, index: int) -> bytes:
        """What stands before the words of every piece of a choice."""
        said = {"id": self._call_id, "object": kind, "created": created, "model": self._model}
        opening = _ENCODER.encode(said)[:-1]
        return b'data: %b,"choices":[{"index":%d,"delta":{"content":' % (opening, index)

    def done(self, mark: bytes) -> bytes:
        """The end mark of OpenAI's streams, as it came."""
        return mark

    def whole(self, said: Json) -> bytes:
        """The answer, relabelled."""
        said["id"] = self._call_id
        said["model"] = self._model
        return encode_json(said)
