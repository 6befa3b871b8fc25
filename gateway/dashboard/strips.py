"""The tokens of a branch as a strip: each with its id, whether it is trained, how likely it was, and whose it is.

A token is trained in one branch only: where branches share calls the first trains them, as in `tracker/samples.py`.
Colour is never the only sign: each class of log-probability has its own line under the token, and its number in words.
Pure; the text of ids is asked for in `pieces.py`.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tracker.exclusion import ChoiceKey
from tracker.outline import Outline, Split
from tracker.types import Call

WINDOW: Final = 500
"""Tokens that are told at once."""
EDGES: Final = (0.05, 0.15, 0.3, 0.5, 0.8, 1.2, 1.8, 2.7, 4.5)
"""Between the ten classes of minus log-probability."""
TRAINED: Final = "trained"
SAMPLED: Final = "sampled"
"""By a call of this branch, and not trained here."""
CONTEXT: Final = "context"


@dataclass(frozen=True, slots=True)
class Piece:
    """The tokens of one call in a branch."""

    start: int
    end: int
    """Exclusive."""
    call: Call
    choice: int
    kind: str
    why: str
    """Why it is not trained here, in words; empty where it is."""
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a strip."""

    offset: int
    id: int
    text: str | None
    kind: str
    level: int | None
    """Class of its log-probability, 0 (certain) to 9; `None` where nothing was sampled."""
    title: str
    is_split: bool = False
    """The first that differs from another branch."""


@dataclass(frozen=True, slots=True)
class Section:
    """Tokens that stand together: of one call, or between two."""

    kind: str
    name: str
    call_id: str | None
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Strip:
    """A part of a branch."""

    branch: int
    policy: str
    start: int
    end: int
    num_tokens: int
    num_trained: int
    """In the whole branch."""
    sections: tuple[Section, ...]
    split: Split | None
    mean_logprob: float | None
    """Of what is trained in the whole branch."""


def level_of(logprob: float) -> int:
    """The class of a log-probability.

    >>> level_of(-0.01), level_of(-1.0), level_of(-99.0), level_of(float("nan"))
    (0, 5, 9, 9)
    """
    return bisect.bisect_left(EDGES, -logprob) if math.isfinite(logprob) else len(EDGES)


def pieces_of(told: Outline, branch: int) -> tuple[Piece, ...]:
    """What calls sampled in a branch, in the order of their place in it."""
    calls = {call.call_id: call for call in told.calls}
    before = {key for path in told.timeline.branches[:branch] for key in path}
    return tuple(_piece(told, calls[key[0]], key, key in before) for key in told.timeline.branches[branch])


def strip_of(told: Outline, branch: int, start: int, texts: Mapping[int, str]) -> Strip:
    """A part of a branch that begins at an offset; `texts` are those of ids that are known."""
    pieces = pieces_of(told, branch)
    leaf = told.timeline.branches[branch][-1]
    num_tokens = told.num_prompt[leaf[0]] + _num_sampled(told, leaf)
    start = min(max(0, start), max(0, num_tokens - 1))
    end = min(num_tokens, start + WINDOW)
    ids = told.ids(leaf, start, end)
    trained = [piece for piece in pieces if piece.kind == TRAINED]
    split = told.splits[branch]
    scored = [value for piece in trained for value in piece.logprobs if math.isfinite(value)]
    return Strip(
        branch=branch,
        policy=pieces[-1].call.policy or "",
        start=start,
        end=end,
        num_tokens=num_tokens,
        num_trained=sum(piece.end - piece.start for piece in trained),
        sections=tuple(_sections(pieces, _Window(start, end, ids, texts, split.depth if split else None))),
        split=split,
        mean_logprob=math.fsum(scored) / len(scored) if scored else None,
    )


def ids_of(told: Outline, branch: int, start: int) -> tuple[int, ...]:
    """The ids of a part, whose text is to be asked for."""
    return told.ids(told.timeline.branches[branch][-1], max(0, start), max(0, start) + WINDOW)


def call_strip(told: Outline, key: ChoiceKey, call: Call, texts: Mapping[int, str]) -> tuple[Section, ...]:
    """What one choice of a call sampled, up to a window of it."""
    choice = next(one for one in call.choices if one.index == key[1])
    first = told.num_prompt[call.call_id]
    reason = told.timeline.excluded.get(key)
    piece = Piece(
        start=first,
        end=first + len(choice.sampled_ids),
        call=call,
        choice=choice.index,
        kind=TRAINED if reason is None else SAMPLED,
        why="" if reason is None else reason.value,
        logprobs=choice.logprobs,
    )
    ids = choice.sampled_ids[:WINDOW]
    return tuple(_sections([piece], _Window(first, first + len(ids), ids, texts, None)))


def _piece(told: Outline, call: Call, key: ChoiceKey, is_before: bool) -> Piece:
    choice = next(one for one in call.choices if one.index == key[1])
    start = told.num_prompt[call.call_id]
    reason = told.timeline.excluded.get(key)
    why = reason.value if reason is not None else "trained in an earlier branch" if is_before else ""
    return Piece(
        start=start,
        end=start + len(choice.sampled_ids),
        call=call,
        choice=choice.index,
        kind=SAMPLED if why else TRAINED,
        why=why,
        logprobs=choice.logprobs,
    )


def _num_sampled(told: Outline, key: ChoiceKey) -> int:
    call = next(call for call in told.calls if call.call_id == key[0])
    return next(len(choice.sampled_ids) for choice in call.choices if choice.index == key[1])


@dataclass(frozen=True, slots=True)
class _Window:
    """What is told of a part of a branch."""

    start: int
    end: int
    ids: Sequence[int]
    texts: Mapping[int, str]
    split: int | None
    """Where the first id stands that differs from another branch."""

    def tokens(self, piece: Piece | None, start: int, end: int) -> tuple[Token, ...]:
        return tuple(self._token(piece, offset) for offset in range(start, end))

    def _token(self, piece: Piece | None, offset: int) -> Token:
        token = self.ids[offset - self.start]
        is_split = offset == self.split
        known = () if piece is None else piece.logprobs[offset - piece.start : offset - piece.start + 1]
        title = f"token {offset}, id {token}{_chance(known)}, {_state(piece)}"
        return Token(
            offset=offset,
            id=token,
            text=self.texts.get(token),
            kind=CONTEXT if piece is None else piece.kind,
            level=level_of(known[0]) if known else None,
            title=f"{title}, the first that differs" if is_split else title,
            is_split=is_split,
        )


def _sections(pieces: Iterable[Piece], window: _Window) -> Iterator[Section]:
    """The parts of a window: calls, and what stands between them."""
    at = window.start
    for piece in pieces:
        if piece.end <= at or piece.start >= window.end:
            continue
        if at < piece.start:
            yield _between(window, at, piece.start)
            at = piece.start
        until = min(piece.end, window.end)
        call = piece.call
        name = f"#{call.index} {call.role}, {call.policy} version {call.version}: {_words(piece.why) or TRAINED}"
        yield Section(kind=piece.kind, name=name, call_id=call.call_id, tokens=window.tokens(piece, at, until))
        at = until
    if at < window.end:
        yield _between(window, at, window.end)


def _between(window: _Window, start: int, end: int) -> Section:
    return Section(kind=CONTEXT, name=CONTEXT, call_id=None, tokens=window.tokens(None, start, end))


def _chance(known: Sequence[float]) -> str:
    return f", log-probability {known[0]:.3f} ({100 * math.exp(min(0.0, known[0])):.1f} %)" if known else ""


def _state(piece: Piece | None) -> str:
    if piece is None:
        return CONTEXT
    return f"not trained: {_words(piece.why)}" if piece.why else f"trained, version {piece.call.version}"


def _words(reason: str) -> str:
    return reason.replace("_", " ")
