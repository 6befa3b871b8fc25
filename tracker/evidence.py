"""Whether calls, rows and what a model is fed are what the receipts say; each place where they are not, by name.

The rule: for every trained token, `prompt_ids + sampled_ids[:j]` is what the call's receipt says, under the version and
adapter it names, and the calls of an episode are those that were sealed: none changed, moved, missing or added. What is
found is a fault with its place; nothing is repaired. Pure. What to do about a fault is left to the trainer, which
refuses the batch before it steps, and to `hone verify`, which tells it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from msgspec.structs import replace

from tracker.codec import decode_calls
from tracker.errors import CorruptRecord
from tracker.receipts import Receipt, chain, decode_receipts, receipt_digest, receipt_of
from tracker.samples import Row
from tracker.types import Call, Choice, Record

_IDENTITY: Final = {
    "policy": "the policy",
    "version": "the version",
    "adapter_digest": "the adapter",
    "engine": "the engine",
}


class Fault(Record, frozen=True):
    """One thing that is not what it should be, and where."""

    what: str
    episode_id: str | None = None
    call_id: str | None = None
    choice: int | None = None
    offset: int | None = None
    """The first id that differs, counted over prompt ids and then sampled ids; where only digests are known, the first
    of those that they stand for."""

    def line(self) -> str:
        """One line for people.

        >>> Fault(what="the prompt ids are others", episode_id="ep-1", call_id="c-2", offset=7).line()
        'episode ep-1, call c-2, offset 7: the prompt ids are others'
        """
        named = (("episode", self.episode_id), ("call", self.call_id), ("choice", self.choice), ("offset", self.offset))
        place = ", ".join(f"{word} {value}" for word, value in named if value is not None)
        return f"{place}: {self.what}" if place else self.what


class Archived(Record, frozen=True):
    """An episode as SQL holds it."""

    episode_id: str
    chain: str
    """Closed over the receipts of its calls when it was sealed (hex)."""
    calls: tuple[Call, ...]
    receipts: tuple[Receipt, ...] | None = None
    """As they were stored with the chain; `None` where only the chain was."""

    @classmethod
    def of(cls, episode_id: str, blob: bytes, chain: str, receipts: bytes | None) -> Archived:
        """Open what is stored of an episode; raises `CorruptRecord` naming it."""
        try:
            calls = decode_calls(blob)
            known = None if receipts is None else decode_receipts(receipts)
        except CorruptRecord as error:
            raise CorruptRecord(f"episode {episode_id}: {error.message}") from error
        return cls(episode_id=episode_id, chain=chain, calls=calls, receipts=known)

    def sealed(self) -> tuple[Receipt, ...]:
        """The receipts of the chain; worked out from the calls where they were not stored."""
        return tuple(map(receipt_of, self.calls)) if self.receipts is None else self.receipts

    def find(self, call_id: str) -> tuple[Call, Receipt] | None:
        """A call and its sealed receipt."""
        call = next((call for call in self.calls if call.call_id == call_id), None)
        receipt = next((receipt for receipt in self.sealed() if receipt.call_id == call_id), None)
        return None if call is None or receipt is None else (call, receipt)


class Sealed(Record, frozen=True):
    """The archive of one episode as it lies in SQL, not opened yet."""

    episode_id: str
    blob: bytes
    chain: str
    receipts: bytes | None
    """`None` where only the chain was stored."""
    shredded: str = ""
    """Why there is nothing to be read of it, for people."""

    def opened(self) -> Archived:
        """With its calls; raises `CorruptRecord`."""
        return Archived.of(self.episode_id, self.blob, self.chain, self.receipts)

    def stored_receipts(self) -> tuple[Receipt, ...] | None:
        """What proves it; `None` where that was not stored. Raises `CorruptRecord`."""
        return None if self.receipts is None else decode_receipts(self.receipts)


class Adapter(Record, frozen=True):
    """What is known of the adapter of a version."""

    registered: str
    """The digest it was published with (hex); empty for version 0, the bare base model."""
    folder: str = ""
    found: str | None = None
    """The digest of the file that lies in the data folder; `None` where it is not kept any more."""


class Checked(Record, frozen=True):
    """How many trained tokens were found to be what the receipts say."""

    context: int = 0
    """Under the context of the receipt."""
    sampled: int = 0
    """And the id that was sampled."""


def episode_faults(archived: Archived) -> Iterator[Fault]:
    """Where an episode's calls are not those it was sealed with."""
    name = archived.episode_id
    sealed = archived.sealed()
    yield from chain_faults(archived)
    for call in archived.calls:
        if call.episode_id != name:
            yield Fault(what=f"it is a call of episode {call.episode_id}", episode_id=name, call_id=call.call_id)
    yield from _order_faults(archived, sealed)
    receipts = {receipt.call_id: receipt for receipt in sealed}
    for call in archived.calls:
        if call.call_id in receipts:
            yield from call_faults(call, receipts[call.call_id], name)


def chain_faults(archived: Archived) -> Iterator[Fault]:
    """Whether an episode's receipts, or its calls where no receipts were stored, are those of its chain."""
    if chain(map(receipt_digest, archived.sealed())).hex() != archived.chain:
        whose = "calls" if archived.receipts is None else "receipts"
        what = f"its {whose} do not close to the chain it was sealed with"
        yield Fault(what=what, episode_id=archived.episode_id)


def call_faults(call: Call, receipt: Receipt, episode_id: str) -> Iterator[Fault]:
    """Where a call is not what its receipt says."""
    told, here = receipt_of(call), Fault(what="", episode_id=episode_id, call_id=call.call_id)
    for field, words in _IDENTITY.items():
        ours, theirs = getattr(told, field), getattr(receipt, field)
        if ours != theirs:
            yield replace(here, what=f"{words} is {ours!r}, its receipt says {theirs!r}")
    if told.sampling_digest != receipt.sampling_digest:
        yield replace(here, what="it was sampled with other settings than its receipt says")
    if told.prompt_digest != receipt.prompt_digest:
        yield replace(here, what="the prompt ids are not those of its receipt", offset=0)
    yield from _choice_faults(call, told, receipt)


def _choice_faults(call: Call, told: Receipt, receipt: Receipt) -> Iterator[Fault]:
    here = Fault(what="", episode_id=call.episode_id, call_id=call.call_id)
    if len(told.choices) != len(receipt.choices):
        yield replace(here, what=f"it has {len(told.choices)} choices, its receipt {len(receipt.choices)}")
    for choice, ours, theirs in zip(call.choices, told.choices, receipt.choices, strict=False):
        here = replace(here, choice=choice.index, offset=len(call.prompt_ids))
        if ours[0] != theirs[0]:
            yield replace(here, what=f"the {len(choice.sampled_ids)} sampled ids are not those of its receipt")
        if ours[1] != theirs[1]:
            yield replace(here, what="the log-probabilities are not those of its receipt")


def row_faults(row: Row, archived: Archived | None) -> Iterator[Fault]:
    """Where a row is not the choice of the call that it says it is."""
    here = _place_of(row)
    found = None if archived is None else archived.find(row.call_id)
    if found is None:
        yield replace(here, what="there is no such call with a receipt")
        return
    call, receipt = found
    if row.choice not in {choice.index for choice in call.choices}:
        yield replace(here, what="the call has no such choice")
        return
    for fault in call_faults(_as_told(row, call), receipt, row.episode_id):
        offset = None if fault.offset is None else _first_difference(row, call)
        yield replace(fault, choice=row.choice, offset=offset)
    if row.receipt != receipt_digest(receipt):
        yield replace(here, what="it names another receipt than the call's")


def adapter_fault(version: int, digest: str, adapters: Mapping[int, Adapter]) -> Fault | None:
    """Whether a version is not the adapter that tokens were sampled with; version 0 is the bare base model."""
    adapter = Adapter(registered="") if version == 0 else adapters.get(version)
    if adapter is None:
        return Fault(what=f"version {version} was never registered")
    if adapter.registered != digest:
        ours, theirs = digest or "no adapter", adapter.registered or "no adapter"
        return Fault(what=f"it was sampled with {ours}, version {version} is registered as {theirs}")
    if adapter.found not in (None, digest):
        return Fault(what=f"adapters/{adapter.folder} holds {adapter.found}, version {version} is {digest}")
    return None


def check_episode(archived: Archived) -> None:
    """Raise `CorruptRecord` with the first place where an episode's calls are not those it was sealed with."""
    _refuse(episode_faults(archived))


def check_rows(
    rows: Iterable[Row], archived: Mapping[str, Archived], policy: str, adapters: Mapping[int, Adapter]
) -> Checked:
    """Refuse rows unless each is what was sampled, under the context, the version and the adapter of its receipt.

    Raises `CorruptRecord` with the first place that is not. The episodes were checked by `check_episode`.
    """
    num_tokens = 0
    for row in rows:
        _refuse(row_faults(row, archived.get(row.episode_id)))
        if row.policy != policy:
            _refuse([replace(_place_of(row), what=f"it is a row of policy {row.policy}, not of {policy}")])
        fault = adapter_fault(row.version, row.adapter_digest, adapters)
        _refuse([] if fault is None else [replace(_place_of(row), what=fault.what)])
        num_tokens += len(row.sampled_ids)
    return Checked(context=num_tokens, sampled=num_tokens)


def check_context(row: Row, context_ids: Sequence[int]) -> None:
    """Refuse to run a row unless the ids along its path, up to the last place that predicts, are exactly its own.

    Raises `CorruptRecord` with the first place that differs. The row itself was checked by `check_rows`.
    """
    offset = first_difference((row.prompt_ids + row.sampled_ids)[:-1], context_ids)
    if offset is not None:
        what = "it would be trained under another context than it had"
        _refuse([replace(_place_of(row), what=what, offset=offset)])


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """The first place where two sequences differ, the end of the shorter one included; `None` if they are equal.

    >>> first_difference((1, 2, 3), (1, 2, 4)), first_difference((1, 2), (1, 2, 4)), first_difference((1,), (1,))
    (2, 2, None)
    """
    if tuple(left) == tuple(right):
        return None
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (ours, theirs) in pairs if ours != theirs), min(len(left), len(right)))


def _order_faults(archived: Archived, sealed: Sequence[Receipt]) -> Iterator[Fault]:
    """Calls that are missing, added or moved."""
    names, expected = [call.call_id for call in archived.calls], [receipt.call_id for receipt in sealed]
    name = archived.episode_id
    for call_id in Counter(expected) - Counter(names):
        yield Fault(what="it was sealed with the episode and is missing", episode_id=name, call_id=call_id)
    for call_id in Counter(names) - Counter(expected):
        yield Fault(what="it was not there when the episode was sealed", episode_id=name, call_id=call_id)
    if Counter(names) == Counter(expected) and names != expected:
        place = next(place for place, pair in enumerate(zip(names, expected, strict=True)) if pair[0] != pair[1])
        what = f"calls are re-ordered: it stands at place {place}, where {expected[place]} was sealed"
        yield Fault(what=what, episode_id=name, call_id=names[place])
    for before, after in pairwise(archived.calls):
        if after.index < before.index:
            what = f"calls are re-ordered: it stands behind {before.call_id} and says that it began earlier"
            yield Fault(what=what, episode_id=name, call_id=after.call_id)


def _as_told(row: Row, call: Call) -> Call:
    """The call with what the row says of it in place of what it says itself."""

    def told(choice: Choice) -> Choice:
        if choice.index != row.choice:
            return choice
        return replace(choice, sampled_ids=row.sampled_ids, logprobs=row.logprobs)

    return replace(
        call,
        policy=row.policy,
        version=row.version,
        adapter_digest=row.adapter_digest,
        prompt_ids=row.prompt_ids,
        sampling=replace(call.sampling, temperature=row.temperature),
        choices=tuple(told(choice) for choice in call.choices),
    )


def _first_difference(row: Row, call: Call) -> int:
    """Where a row's ids leave those of its call; at the first sampled id where only log-probabilities differ."""
    choice = next(choice for choice in call.choices if choice.index == row.choice)
    offset = first_difference(row.prompt_ids + row.sampled_ids, call.prompt_ids + choice.sampled_ids)
    return len(row.prompt_ids) if offset is None else offset


def _place_of(row: Row) -> Fault:
    return Fault(what="", episode_id=row.episode_id, call_id=row.call_id, choice=row.choice)


def _refuse(faults: Iterable[Fault]) -> None:
    for fault in faults:
        raise CorruptRecord(fault.line())
