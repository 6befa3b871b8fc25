"""A request's headers as the door reads them. Pure."""

from __future__ import annotations

from tracker.errors import BadRequest


class RequestHeaders:
    """The headers of a request, by lower-case name."""

    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        self._raw = raw

    def one(self, name: str) -> str | None:
        """The value of a header; raises if it stands there twice with different ones."""
        wanted = name.encode()
        values = {value for key, value in self._raw if key == wanted}
        if len(values) > 1:
            raise BadRequest(f"The header {name} stands there more than once: send it once.", param=name)
        return values.pop().decode("latin-1").strip() or None if values else None
