"""What Redis holds of an episode, turned back into records: replies in, the view out.

Pure: the commands are `redis_store.py`'s, what the scripts wrote is told in `redis_keys.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from tracker.errors import CorruptRecord
from tracker.records import Shelf, read_shelf
from tracker.store import EpisodeView
from tracker.types import Call, EpisodeHead, EpisodeState, EpisodeStatus, Event, Intent

_INTENT: Final = struct.Struct(">II")
"""index, version; then policy and worker, each ended by a zero byte."""
_TWIN: Final = b"="
_MAX_FIELD_BYTES: Final = 16
"""A digest's field has one more."""
_PIN: Final = b"pin:"


def pairs(flat: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """(field, value) of a reply that lists them in turn."""
    return zip(flat[::2], flat[1::2], strict=True)


def head_of(packed: bytes) -> EpisodeHead:
    """The head as `open` stored it."""
    return msgspec.msgpack.decode(packed, type=EpisodeHead)


def intent_of(stored: bytes) -> Intent:
    """An intent with the index and version that the script gave it. Raises `CorruptRecord`."""
    try:
        index, version = _INTENT.unpack_from(stored)
        _policy, _worker, packed = stored[_INTENT.size :].split(b"\0", 2)
        intent = msgspec.msgpack.decode(packed, type=Intent)
    except (struct.error, ValueError, msgspec.DecodeError) as error:
        raise CorruptRecord(f"A stored intent does not decode: {error}") from error
    return msgspec.structs.replace(intent, index=index, version=version)


def view_of(state: Sequence[bytes], intents: Sequence[bytes], shelf: Shelf, events: Sequence[bytes]) -> EpisodeView:
    """The episode, its calls expanded and in order of their index."""
    fields: dict[bytes, bytes] = dict(pairs(state))
    status = fields.get(b"status")
    return EpisodeView(
        head=head_of(fields[b"head"]),
        state=EpisodeState(fields[b"state"].decode()),
        status=EpisodeStatus(status.decode()) if status is not None else None,
        calls=tuple(sorted(read_shelf(shelf), key=_index)),
        intents=tuple(sorted((intent_of(stored) for _, stored in pairs(intents)), key=_index)),
        pins={name[len(_PIN) :].decode(): int(value) for name, value in fields.items() if name.startswith(_PIN)},
        events=tuple(msgspec.msgpack.decode(event, type=Event) for event in events),
    )


def shelf_of(episode_id: str, records: Sequence[bytes], names: Sequence[bytes], bodies: Sequence[bytes]) -> Shelf:
    """Records with what is needed to read them. A body's field is its kind and a short number."""
    named: dict[int, tuple[str, int]] = {}
    for call_id, value in pairs(names):
        position, index, _lost = value.decode().split(":")
        named[int(position)] = (call_id.decode(), int(index))
    stored: dict[bytes, bytes] = {
        field: body for field, body in pairs(bodies) if field[1:].isdigit() and len(field) <= _MAX_FIELD_BYTES
    }
    return Shelf(
        episode_id=episode_id,
        records=tuple(records),
        own=_numbered(stored, b"o"),
        messages=_numbered(stored, b"m"),
        names=named,
    )


def _numbered(stored: Mapping[bytes, bytes], kind: bytes) -> dict[int, bytes]:
    """Bodies of one kind by number; a twin is looked up, and missing if it is not there."""
    found: dict[int, bytes] = {}
    for field, body in stored.items():
        whole = stored.get(body[1:]) if body.startswith(_TWIN) else body
        if field.startswith(kind) and whole is not None:
            found[int(field[1:])] = whole
    return found


def _index(one: Call | Intent) -> int:
    return one.index
