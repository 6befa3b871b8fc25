"""From sampled ids to text, one token at a time: whole characters only, cut at stop strings.

The rule: the pieces of a choice joined are its text, whatever way it was cut into tokens; bytes of a character that is
not complete yet wait for the rest, and characters that may begin a stop string wait until they do not. The ids are
never changed: a stop string ends the text, and the token that completed it is the last one reported.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainer.engine.chat import held_back
from trainer.engine.sampling import Draw
from trainer.engine.scheduler import FinishReason, Token

Decode = Callable[[list[int]], str]
_INCOMPLETE = "\ufffd"
_CONTEXT = 6
"""Prompt tokens decoded along, because some tokenizers write the first token of a text differently."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of one choice with the text it released, and the reason if it is the last."""

    index: int
    text: str
    draw: Draw
    finish_reason: FinishReason | None
    stop: str | None = None
    """The stop string that ended the choice, if one did."""


class Detokeniser:
    """Decodes a growing list of ids: decodes a short window twice, and takes what is new."""

    def __init__(self, decode: Decode, prompt_ids: Sequence[int]) -> None:
        self._decode = decode
        self._ids = list(prompt_ids[-_CONTEXT:])
        self._from = 0
        self._read = len(self._ids)

    @classmethod
    def resumed(cls, decode: Decode, window_ids: Sequence[int], num_read: int) -> "Detokeniser":
        """Go on where another one was, from its `window`."""
        one = cls(decode, ())
        one._ids, one._read = list(window_ids), min(num_read, len(window_ids))
        return one

    def window(self) -> tuple[list[int], int]:
        """Return the ids that are still decoded along, and how many of them are in words."""
        return self._ids[self._from :], self._read - self._from

    def push(self, token_id: int) -> str:
        """Return the text that this token completed; nothing while a character lacks bytes."""
        self._ids.append(token_id)
        text = self._new_text()
        if not text or text.endswith(_INCOMPLETE):
            return ""
        self._from, self._read = self._read, len(self._ids)
        return text

    def flush(self) -> str:
        """Return what was still held: bytes that never became a character read as replacement characters."""
        text = self._new_text()
        self._from, self._read = self._read, len(self._ids)
        return text

    def _new_text(self) -> str:
        before = self._decode(self._ids[self._from : self._read])
        return self._decode(self._ids[self._from :])[len(before) :]


class ChoiceText:
    """Turns the tokens of one choice into pieces; after the last piece, tokens are ignored."""

    def __init__(self, index: int, decode: Decode, prompt_ids: Sequence[int], stop: Sequence[str]) -> None:
        self._index = index
        self._detokeniser = Detokeniser(decode, prompt_ids)
        self._stop = tuple(stop)
        self._held = ""
        self.is_finished = False

    def push(self, token: Token) -> Piece:
        """Take the next token and return its piece."""
        reason = token.finish_reason
        # The text of the token that ends an answer is no part of the answer.
        self._held += "" if reason == "stop" else self._detokeniser.push(token.draw.token_id)
        if reason is not None:
            self._held += self._detokeniser.flush()
        stop = self._found_stop()
        if stop is not None:
            reason = "stop"
            self._held = self._held.partition(stop)[0]
        self.is_finished = reason is not None
        keep = 0 if self.is_finished else held_back(self._held, self._stop)
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return Piece(self._index, text, token.draw, reason, stop)

    def _found_stop(self) -> str | None:
        """Return the stop string that comes first."""
        found = [mark for mark in self._stop if mark in self._held]
        return min(found, key=self._held.index, default=None)
