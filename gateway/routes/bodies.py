"""Request bodies: strict JSON, parsed once into frozen models.

Python's own parser takes NaN, Infinity and 1e999 for numbers; here they are refused with 422 before anything else is
looked at. A field that no model has is refused by name, since a misspelt `final` would be silently lost.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, NoReturn, TypeVar, cast

import msgspec
from fastapi import Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect

from gateway.json_depth import refuse_deep
from gateway.routes.access import services_of
from tracker.errors import BadRequest, HoneError, TooLarge, Unprocessable
from tracker.types import ID_PATTERN

MAX_BYTES: Final = 8 * 2**20
REPEATED: Final[dict[int | str, dict[str, Any]]] = {200: {"description": "It is there already, as this asks for it"}}
"""What a route that makes something answers where it is told twice, for `/openapi.json`."""
BodyT = TypeVar("BodyT", bound="Body")


class Body(BaseModel):
    """Base of every request body."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _without_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("leave out the character U+0000")
    return text


Text = Annotated[str, Field(max_length=512), AfterValidator(_without_nul)]
"""Free text of up to 512 characters."""
Id = Annotated[str, Field(pattern=f"^(?:{ID_PATTERN})$")]
Json = Any
"""A value that is stored as it is."""


def body_of(model: type[BodyT], *, required: bool = True) -> Callable[[Request], Awaitable[BodyT]]:
    """A dependency that reads the body as this model; an empty one is `{}` where none is required."""

    async def read(request: Request) -> BodyT:
        try:
            return model.model_validate(await _object_of(request, required=required))
        except ValidationError as error:
            raise _explained(error, model) from error

    return read


def documented(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """What `/openapi.json` says of a body that is read here."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    return {
        "requestBody": {
            "required": required,
            "content": {"application/json": {"schema": _inlined(schema, definitions)}},
        }
    }


def decode_strictly(raw: bytes) -> Any:
    """Decode JSON as the standard has it; raises `BadRequest`, or `Unprocessable` for a number that is not finite."""
    refuse_deep(raw)
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        _refuse_not_finite(raw)
        raise BadRequest(f"The body is not valid JSON: {error}.", code="invalid_json") from error


def digest_of(body: BaseModel) -> str:
    """Equal for equal bodies, however they were written."""
    return hashlib.sha256(json.dumps(body.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def encoded(value: Json) -> bytes:
    """A value as it is stored."""
    return msgspec.json.encode(value)


async def read_object(request: Request) -> dict[str, Any]:
    """A dependency: the body as a JSON object, its fields not looked at yet. (Any more that it took would be read from
    the query.)"""
    return await _object_of(request, required=True)


async def _object_of(request: Request, *, required: bool) -> dict[str, Any]:
    """The body as a JSON object; an empty one is `{}` where none is required."""
    raw = await _read(request)
    if not raw and not required:
        return {}
    fields = decode_strictly(raw)
    if not isinstance(fields, dict):
        raise BadRequest("The body must be a JSON object.")
    return cast("dict[str, Any]", fields)


async def _read(request: Request) -> bytes:
    """The whole body, within its limits of size and time."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(services_of(request).settings.body_timeout_s):
            async for part in request.stream():
                size += len(part)
                if size > MAX_BYTES:
                    raise TooLarge(f"The body is larger than {MAX_BYTES} bytes.")
                parts.append(part)
    except TimeoutError as error:
        raise BadRequest("The body did not arrive in time.", code="timeout") from error
    except ClientDisconnect as error:
        raise BadRequest("The client left before its body had arrived.", code="client_gone") from error
    return b"".join(parts)


def _refuse_not_finite(raw: bytes) -> None:
    """Raise `Unprocessable` if the body is what Python would call JSON, with a number that is none."""

    def not_finite(text: str) -> NoReturn:
        raise Unprocessable(f"{text} is not a finite number.", code="not_finite")

    def finite(text: str) -> float:
        number = float(text)
        return number if math.isfinite(number) else not_finite(text)

    try:
        json.loads(raw, parse_constant=not_finite, parse_float=finite)
    except (ValueError, RecursionError):
        return


def _explained(error: ValidationError, model: type[Body]) -> HoneError:
    """The first thing that is wrong with a body, as an error that says what to write."""
    item = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in item["loc"]) or None
    if item["type"] == "extra_forbidden":
        return BadRequest(f"There is no field {where!r}; there are {', '.join(model.model_fields)}.", param=where)
    if item["type"] == "missing":
        return BadRequest(f"The field {where!r} is missing.", param=where)
    kind = Unprocessable if where == "reward" else BadRequest
    message = re.sub(r"^(Value error|Assertion failed), ", "", item["msg"])
    return kind(f"{where or 'body'}: {message}.", param=where)


def _inlined(schema: object, definitions: Mapping[str, object]) -> Any:
    """The schema with its references to local definitions replaced by them."""
    if isinstance(schema, list):
        return [_inlined(item, definitions) for item in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    fields = cast("dict[str, object]", schema)
    reference = fields.get("$ref")
    if isinstance(reference, str):
        return _inlined(definitions[reference.rpartition("/")[2]], definitions)
    return {name: _inlined(item, definitions) for name, item in fields.items()}
