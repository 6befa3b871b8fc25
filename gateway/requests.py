"""A request's headers as the door reads them. Pure."""

from __future__ import annotations

from tracker.errors import BadRequest


class RequestHeaders:
    """The headers of a request, by lower-case name."""

    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        self._values = dict(raw)
        self._repeated = raw if len(self._values) < len(raw) else ()
        """All of them, where any stands there twice."""

    def one(self, name: str) -> str | None:
        """The value of a header; raises if it stands there twice with different ones."""
        wanted = name.encode()
        value = self._values.get(wanted)
        if value is None:
            return None
        if any(key == wanted and other != value for key, other in self._repeated):
            raise BadRequest(f"The header {name} stands there more than once: send it once.", param=name)
        return _text(value).strip() or None

    def sole(self, name: str) -> str | None:
        """The value of a header that decides nothing: none at all where it stands there twice."""
        wanted = name.encode()
        value = self._values.get(wanted)
        if value is None or [key for key, _ in self._repeated].count(wanted) > 1:
            return None
        return _text(value).strip()


def _text(value: bytes) -> str:
    """As UTF-8, which clients send today, else as Latin-1, which HTTP once meant: a task in a header is that in a path.

    >>> _text("täsk".encode()) == _text("täsk".encode("latin-1")) == "täsk"
    True
    """
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
