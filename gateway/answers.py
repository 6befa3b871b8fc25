"""How records and errors become JSON answers: every field written out, and errors in OpenAI's form or a dialect's."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
from starlette.responses import Response

from gateway.dialects.base import ErrorForm
from gateway.dialects.messages.form import MessagesForm
from gateway.dialects.openai_form import OpenAIForm
from tracker.errors import BudgetExceeded, Gone, HoneError
from tracker.types import Record

JSON: Final = "application/json"


class JsonResponse(Response):
    """A JSON answer of values, records among them."""

    media_type = JSON

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(plain(content))


def plain(value: Any) -> Any:
    """The value with its records as objects. Fields at their default are written too, and stored JSON stays JSON."""
    match value:
        case Record():
            return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        case dict():
            fields = cast("dict[object, object]", value)
            return {str(name): plain(item) for name, item in fields.items()}
        case tuple() | list():
            return [plain(item) for item in cast("Sequence[object]", value)]
        case bytes():
            return msgspec.Raw(value)
        case enum.Enum():
            return value.value
        case _:
            return value


def error_answer(error: HoneError, form: ErrorForm | None = None) -> JsonResponse:
    """The answer to a request that failed."""
    headers: dict[str, str] = {}
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        headers["Retry-After"] = str(retry_after_s)
    if isinstance(error, Gone | BudgetExceeded):
        headers["x-should-retry"] = "false"  # SDKs would try again otherwise
    return JsonResponse((form or OpenAIForm()).error_body(error), status_code=error.status, headers=headers)


def form_of(path: str) -> ErrorForm:
    """How errors are told to whoever asks for this path."""
    return MessagesForm() if "/messages" in path else OpenAIForm()
