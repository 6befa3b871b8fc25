"""A whole episode as one line of JSON, without loss: what `hone import` reads in another installation. Pure.

Calls stand there with their ids, log-probabilities and words, beside them the receipts and the chain they were sealed
with. JSON of agents and engines stays JSON, byte for byte; where it is none that strict readers take on one line, it is
told in base64. The digest over the whole line covers what receipts do not: words, rewards, settings. A line is taken as
it was written: whatever rewrites its numbers or spaces breaks the digest.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, get_type_hints

import msgspec
from msgspec.structs import replace

from tracker.codec import encode_calls
from tracker.errors import BadRequest, CorruptRecord
from tracker.evidence import Archived, episode_faults
from tracker.outcomes import spent_on
from tracker.receipts import Receipt, encode_receipts
from tracker.samples import kinds_of
from tracker.types import Call, Choice, EpisodeHead, EpisodeRow, Record, Reward, RunSettings
from tracker.wholes import HEAD, GroupPlace, StoredTimeline, WholeEpisode

SCHEMA: Final = 1
IN_BASE64: Final = "$base64"
_MARK: Final = b'{"$base64"'
_ROW: Final = (
    "status",
    "versions",
    "num_calls",
    "num_samples",
    "num_excluded",
    "num_truncated",
    "num_raw_tokens",
    "num_distinct_tokens",
    "ended_ms",
    "archived_ms",
    "events",
    "key_ids",
)
"""What is carried of a row, beside its head."""
RecordT = TypeVar("RecordT", bound=Record)
_Reader = Callable[[msgspec.Raw], Any]


class _Line(msgspec.Struct, kw_only=True):
    hone: int
    digest: str = ""
    episode: dict[str, msgspec.Raw]
    run: RunSettings
    group: GroupPlace | None = None
    rewards: list[dict[str, msgspec.Raw]]
    chain: str
    receipts: tuple[Receipt, ...] | None = None
    calls: list[dict[str, msgspec.Raw]]


def line_of(whole: WholeEpisode, archived: Archived) -> bytes:
    """An episode as a line, without its end; `archived` is its timeline, opened."""
    fields = _fields(whole, archived)
    return msgspec.json.encode({"hone": SCHEMA, "digest": _digest(fields), **fields})


def whole_of(line: bytes) -> WholeEpisode:
    """The episode of a line, checked. Raises `BadRequest` for what is no such line, `CorruptRecord` naming the place
    where it is not what was sealed and exported."""
    told = _parsed(line)
    try:
        whole, archived = _read(told)
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError) as error:
        raise BadRequest(f"It does not read as an exported episode: {error}.") from error
    for fault in episode_faults(archived):
        raise CorruptRecord(fault.line())
    if _digest(_fields(whole, archived)) != told.digest:
        what = "its words, rewards or settings are not what was exported"
        raise CorruptRecord(f"episode {archived.episode_id}: {what}")
    return whole


def is_same(one: WholeEpisode, other: WholeEpisode) -> bool:
    """Whether two are the same episode, wherever they lie: numbers that each installation gives do not count."""
    return _comparable(one) == _comparable(other)


def _parsed(line: bytes) -> _Line:
    try:
        version = msgspec.json.decode(line, type=dict[str, msgspec.Raw]).get("hone", b"null")
        if bytes(version) != str(SCHEMA).encode():
            raise BadRequest(f"It is no episode exported with `--as episodes`, schema {SCHEMA}.")
        return msgspec.json.decode(line, type=_Line)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadRequest(f"It does not read as an exported episode: {error}.") from error


def _fields(whole: WholeEpisode, archived: Archived) -> dict[str, Any]:
    row = whole.row
    head = {name: getattr(row.head, name) for name in HEAD} | {"metadata": _json(row.head.metadata)}
    return {
        "episode": head | {name: getattr(row, name) for name in _ROW},
        "run": whole.run,
        "group": whole.group,
        "rewards": [_reward(reward) for reward in sorted(whole.rewards, key=lambda reward: reward.seq)],
        "chain": archived.chain,
        "receipts": archived.receipts,
        "calls": [_call(call) for call in archived.calls],
    }


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(msgspec.json.encode(fields)).hexdigest()


def _reward(reward: Reward) -> dict[str, Any]:
    told = {name: getattr(reward, name) for name in Reward.__struct_fields__ if name != "seq"}
    return told | {"metadata": _json(reward.metadata)}


def _call(call: Call) -> dict[str, Any]:
    told = {name: getattr(call, name) for name in Call.__struct_fields__}
    choices = [
        {name: getattr(choice, name) for name in Choice.__struct_fields__}
        | {"message": _json(choice.message), "logprobs": [_number(value) for value in choice.logprobs]}
        for choice in call.choices
    ]
    words = {"messages": [_json(message) for message in call.messages], "request": _json(call.request)}
    return told | words | {"choices": choices}


def _number(value: float) -> float | str:
    """JSON has no number that is not finite."""
    return value if math.isfinite(value) else str(value)


def _json(stored: bytes) -> Any:
    """Stored JSON as it is, if a strict reader takes it on one line."""
    if not stored.startswith(_MARK) and b"\n" not in stored and b"\r" not in stored:
        try:
            if bytes(msgspec.json.decode(stored, type=msgspec.Raw)) == stored:
                return msgspec.Raw(stored)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    return {IN_BASE64: base64.b64encode(stored).decode()}


def _unjson(raw: msgspec.Raw) -> bytes:
    told = bytes(raw)
    if not told.startswith(_MARK):
        return told
    return base64.b64decode(msgspec.json.decode(told, type=dict[str, str])[IN_BASE64], validate=True)


def _read(told: _Line) -> tuple[WholeEpisode, Archived]:
    calls = tuple(_record(Call, fields, _CALL_WORDS) for fields in told.calls)
    head = _record(EpisodeHead, {name: told.episode[name] for name in HEAD}, {"metadata": _unjson})
    row = _record(
        EpisodeRow,
        {name: told.episode[name] for name in _ROW if name in told.episode},
        {},
        head=head,
        kinds=kinds_of(calls),
        spent=spent_on(calls),
    )
    rewards = tuple(
        replace(_record(Reward, fields, {"metadata": _unjson}, seq=0), seq=number)
        for number, fields in enumerate(told.rewards)
    )
    archived = Archived(episode_id=head.episode_id, chain=told.chain, calls=calls, receipts=told.receipts)
    timeline = StoredTimeline(
        episode_id=head.episode_id,
        tenant=head.tenant,
        run=head.run,
        blob=encode_calls(calls),
        digest=told.chain,
        receipts=None if told.receipts is None else encode_receipts(told.receipts),
    )
    return WholeEpisode(row=row, run=told.run, timeline=timeline, rewards=rewards, group=told.group), archived


def _record(
    kind: type[RecordT], fields: Mapping[str, msgspec.Raw], readers: Mapping[str, _Reader], **own: Any
) -> RecordT:
    """A record from its fields, each read as its type says; those that another Hone has are no business of ours."""
    types = _TYPES[kind]
    values = {
        name: readers[name](raw) if name in readers else msgspec.json.decode(raw, type=types[name])
        for name, raw in fields.items()
        if name in types
    }
    return kind(**values, **own)


def _choices(raw: msgspec.Raw) -> tuple[Choice, ...]:
    listed = msgspec.json.decode(raw, type=list[dict[str, msgspec.Raw]])
    return tuple(_record(Choice, fields, {"message": _unjson, "logprobs": _numbers}) for fields in listed)


def _numbers(raw: msgspec.Raw) -> tuple[float, ...]:
    return tuple(float(value) for value in msgspec.json.decode(raw, type=list[float | str]))


def _messages(raw: msgspec.Raw) -> tuple[bytes, ...]:
    return tuple(_unjson(message) for message in msgspec.json.decode(raw, type=list[msgspec.Raw]))


_CALL_WORDS: Final[Mapping[str, _Reader]] = {"messages": _messages, "request": _unjson, "choices": _choices}
_TYPES: Final[Mapping[type[Record], dict[str, Any]]] = {
    kind: get_type_hints(kind) for kind in (Call, Choice, EpisodeHead, EpisodeRow, Reward)
}


def _comparable(whole: WholeEpisode) -> bytes:
    """Everything of an episode but what an installation says of it: round and state of its group."""
    group = whole.group
    if group is not None:
        named = {"group_id": group.group_id, "size": group.size, "place": group.place, "standing": group.standing}
        fields = _fields(replace(whole, group=None), whole.timeline.opened()) | {"group": named}
    else:
        fields = _fields(whole, whole.timeline.opened())
    runs = {"run": replace(whole.run, retention=RunSettings(run=whole.run.run).retention)}
    return msgspec.json.encode(fields | runs)
