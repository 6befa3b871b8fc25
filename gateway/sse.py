"""Server-sent events: bytes in, events out, however the bytes were cut.

Lines end with LF, CRLF or CR and with nothing else: U+2028, U+2029 and U+0085 are ordinary characters of JSON text, so
no text is split here, only bytes. Each event keeps the exact bytes it came as, so that what needs no change goes on
unchanged. What the data means is left to `capture.py`. No I/O.
"""

from __future__ import annotations

import re
from typing import Final

from tracker.errors import UpstreamFailed
from tracker.types import Record

MAX_EVENT_BYTES: Final = 64 * 2**20
DONE: Final = b"[DONE]"
_LINE_END: Final = rb"(?:\r\n|\n|\r(?=[^\n]))"
"""A CR at the very end of the buffer is not decided yet: the LF that belongs to it may be in the next bytes."""
_EVENT_END: Final = re.compile(_LINE_END + _LINE_END)
_UNSEEN: Final = 3
"""The longest event end is four bytes, so the last three of what was searched may begin one."""


class SseEvent(Record, frozen=True):
    """One event, or one block of comments."""

    raw: bytes
    """Exactly what came, the empty line included."""
    data: bytes | None
    """Its `data` lines joined by LF; `None` if it has none (a comment, a bare `id` or `event`)."""

    @property
    def is_done(self) -> bool:
        """Whether this is the end mark of OpenAI's streams."""
        return self.data == DONE


class SseParser:
    r"""Cuts a stream of bytes into events.

    >>> parser = SseParser()
    >>> [e.data for e in parser.feed(b"data: 1\n\ndata: 2\n")]
    [b'1']
    >>> [e.data for e in parser.feed(b"\n")]
    [b'2']
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._rest = b""
        self._searched = 0
        self._max = max_event_bytes

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that these bytes complete."""
        if not self._rest and _is_one_event(chunk):  # as nearly every piece of a stream is
            return [SseEvent(raw=chunk, data=chunk[6:-2])]
        buffer = self._rest + chunk if self._rest else chunk
        events: list[SseEvent] = []
        start, search_from = 0, self._searched
        while True:
            end = _event_end(buffer, search_from)
            if end < 0:
                break
            raw = buffer[start:end]
            events.append(SseEvent(raw=raw, data=_data(raw)))
            start = search_from = end
        self._rest = buffer[start:]
        self._searched = max(0, len(self._rest) - _UNSEEN)
        if len(self._rest) > self._max:
            raise UpstreamFailed(f"The engine sent an event of more than {self._max} bytes.")
        return events

    def close(self) -> list[SseEvent]:
        """What is left when the stream ends without an empty line: an event, if it holds data.

        A sender may leave the last empty line out; an event cut in its middle is not JSON, and fails there.
        """
        rest, self._rest, self._searched = self._rest, b"", 0
        data = _data(rest)
        return [] if data is None else [SseEvent(raw=rest.rstrip(b"\r\n") + b"\n\n", data=data)]


def encode_event(data: bytes) -> bytes:
    """One event with this data, which holds no line ends (JSON as `msgspec` writes it has none)."""
    return b"data: " + data + b"\n\n"


def _event_end(buffer: bytes, start: int) -> int:
    """Where the next event ends, or -1."""
    if b"\r" not in buffer:
        found = buffer.find(b"\n\n", start)
        return found + 2 if found >= 0 else -1
    match = _EVENT_END.search(buffer, start)
    return match.end() if match is not None else -1


def _is_one_event(raw: bytes) -> bool:
    """Whether it is one whole event of one data line."""
    return raw.startswith(b"data: ") and raw.find(b"\n") == len(raw) - 2 >= 0 and raw[-1] == 10 and b"\r" not in raw


def _data(raw: bytes) -> bytes | None:
    """The joined `data` lines of one event."""
    if _is_one_event(raw):
        return raw[6:-2]
    lines = [_value(line) for line in raw.splitlines() if line == b"data" or line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def _value(line: bytes) -> bytes:
    value = line[5:]
    return value[1:] if value.startswith(b" ") else value
