"""Values that fit a JSON schema: what the scripted engine gives to tools and to structured output. Pure.

They are the smallest that the schema asks for, made of defaults, examples and enumerations where there are any, and of
harmless words elsewhere. A schema that cannot be followed to its end gives null rather than a failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from gateway.dialects.base import object_of

MAX_DEPTH: Final = 12
WORD: Final = "example"
FORMATS: Final[Mapping[str, str]] = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "email": "someone@example.com",
    "ipv4": "127.0.0.1",
    "uri": "https://example.com/",
    "url": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
_GIVEN: Final = ("const", "default")
_LISTED: Final = ("enum", "examples")
_UNIONS: Final = ("anyOf", "oneOf")


def value_for(schema: object, root: object = None, depth: int = 0) -> Any:
    """A value that fits.

    >>> value_for({"type": "object", "properties": {"city": {"type": "string"}, "n": {}}, "required": ["city"]})
    {'city': 'example'}
    """
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return WORD if schema is True else None
    fields = _resolved(cast("dict[str, Any]", schema), root if root is not None else cast("object", schema))
    root = root if root is not None else fields
    for name in _GIVEN:
        if name in fields:
            return fields[name]
    for name in _LISTED:
        if isinstance(fields.get(name), list) and fields[name]:
            return fields[name][0]
    for name in _UNIONS:
        if isinstance(fields.get(name), list) and fields[name]:
            return value_for(_first_real(fields[name]), root, depth + 1)
    return _typed(fields, root, depth)


def _typed(fields: dict[str, Any], root: object, depth: int) -> Any:
    match _type_of(fields):
        case "object":
            return _object(fields, root, depth)
        case "array":
            return [value_for(fields.get("items", True), root, depth + 1)] * max(1, int(fields.get("minItems") or 1))
        case "integer":
            return int(_least(fields))
        case "number":
            return _least(fields)
        case "boolean":
            return False
        case "null":
            return None
        case _:
            return _text(fields)


def _type_of(fields: dict[str, Any]) -> object:
    kind: object = fields.get("type")
    if isinstance(kind, list):
        kinds = cast("list[object]", kind)
        return next((each for each in kinds if each != "null"), "null")
    if kind is None and ("properties" in fields or "required" in fields):
        return "object"
    return "array" if kind is None and "items" in fields else kind


def _object(fields: dict[str, Any], root: object, depth: int) -> dict[str, Any]:
    known = cast("dict[str, Any]", fields.get("properties") or {})
    required = cast("list[str]", fields.get("required") or [])
    return {name: value_for(known.get(name, True), root, depth + 1) for name in required}


def _text(fields: dict[str, Any]) -> str:
    text = FORMATS.get(str(fields.get("format")), WORD)
    text += "e" * max(0, int(fields.get("minLength") or 0) - len(text))
    most = fields.get("maxLength")
    return text if most is None else text[: int(most)]


def _least(fields: dict[str, Any]) -> float:
    if "minimum" in fields:
        return fields["minimum"]
    if isinstance(fields.get("exclusiveMinimum"), int | float):
        return fields["exclusiveMinimum"] + 1
    most = fields.get("maximum", fields.get("exclusiveMaximum", 2))
    return min(1, most - 1) if most <= 1 else 1


def _first_real(options: list[Any]) -> Any:
    """The first that is not null."""
    return next((each for each in options if each != {"type": "null"}), options[0])


def _resolved(fields: dict[str, Any], root: object, depth: int = 0) -> dict[str, Any]:
    """The schema with `$ref` followed and `allOf` laid over each other."""
    for _ in range(MAX_DEPTH):
        reference = fields.get("$ref")
        if not isinstance(reference, str):
            break
        fields = {**_found(reference, root), **{name: value for name, value in fields.items() if name != "$ref"}}
    for part in cast("list[Any]", fields.get("allOf") or []):
        if isinstance(part, dict) and depth < MAX_DEPTH:
            fields = {**_resolved(cast("dict[str, Any]", part), root, depth + 1), **fields}
    return fields


def _found(reference: str, root: object) -> dict[str, Any]:
    at = object_of(root)
    for name in filter(None, reference.removeprefix("#").split("/")):
        inner: object = at.get(name)
        at = object_of(inner)
    return at
