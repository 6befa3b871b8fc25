"""What a form sends: its fields, once it is certain that one of our own pages sent it.

Every form carries the token of its session (`csrf`; htmx may send it as the header `X-CSRF-Token`), a browser that says
where a request comes from must name this place, and the cookie goes along from no other site to begin with. What the
fields mean is left to each page.
"""

from __future__ import annotations

import hmac
from typing import Annotated, Final
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends, Request
from starlette.requests import ClientDisconnect

from gateway.dashboard.access import ViewerOf
from gateway.routes.access import services_of
from tracker.errors import BadRequest, Forbidden, TooLarge

MAX_BYTES: Final = 64 * 1024
MAX_FIELDS: Final = 100
FIELD: Final = "csrf"
HEADER: Final = "x-csrf-token"
FOREIGN: Final = "This form was sent from another site, or from a page of another session. Open the page again."


async def form_of(request: Request, viewer: ViewerOf) -> dict[str, str]:
    """A dependency: the fields of a form of this viewer, without the token; raises `Forbidden`."""
    refuse_foreign(request)
    fields = parse_form(await read_body(request))
    token = fields.pop(FIELD, "") or request.headers.get(HEADER, "")
    if not hmac.compare_digest(token.encode("utf-8", "replace"), viewer.csrf.encode()):
        raise Forbidden(FOREIGN, code="csrf")
    return fields


FormOf = Annotated[dict[str, str], Depends(form_of)]


def refuse_foreign(request: Request) -> None:
    """Raise `Forbidden` where the browser says that another site sent this."""
    site = request.headers.get("sec-fetch-site", "none")
    origin = request.headers.get("origin")
    places = {request.headers.get("host", ""), urlsplit(services_of(request).settings.base_url).netloc}
    if site not in ("same-origin", "none") or (origin is not None and urlsplit(origin).netloc not in places):
        raise Forbidden(FOREIGN, code="csrf")


async def read_body(request: Request) -> bytes:
    """A whole small body."""
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > MAX_BYTES:
                raise TooLarge(f"A form is at most {MAX_BYTES} bytes.")
            parts.append(part)
    except ClientDisconnect as error:
        raise BadRequest("The browser left before its form had arrived.", code="client_gone") from error
    return b"".join(parts)


def parse_form(raw: bytes) -> dict[str, str]:
    """The fields of an urlencoded body; of several with one name, all, joined with commas (checkboxes).

    >>> parse_form(b"a=1&b=x+y&a=2&c=")
    {'a': '1,2', 'b': 'x y', 'c': ''}
    """
    try:
        pairs = parse_qsl(raw.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise BadRequest("The form is not urlencoded, or has too many fields.", code="invalid_form") from error
    fields: dict[str, str] = {}
    for name, value in pairs:
        fields[name] = f"{fields[name]},{value}" if name in fields else value
    return fields
