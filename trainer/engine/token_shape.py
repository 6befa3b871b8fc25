"""The JSON of a generation from ids: ids and log-probabilities out, words too where they are asked for.

The rule: as with every shape, the whole is the fold of the parts that a stream sends, and prompt ids stand in the first
chunk. In mode `text` log-probabilities are those of a chat, else they name tokens by id.
"""

from collections.abc import Iterable

from trainer.engine.answers import Json, TokenText, Wanted, finite, token_logprob
from trainer.engine.sampling import Draw
from trainer.engine.text import Piece


class TokensShape:
    """What `/inference/v1/generate` answers, streamed and whole."""

    def __init__(self, wanted: Wanted, token_text: TokenText, *, has_text: bool) -> None:
        self._wanted = wanted
        self._token_text = token_text
        self._has_text = has_text
        self._is_opened = False

    def envelope(self, choices: list[Json]) -> Json:
        mode = "text" if self._has_text else "tokens"
        return {"request_id": self._wanted.answer_id, "output_mode": mode, "choices": choices}

    def opening(self) -> list[Json]:
        """A generation has no opening chunk."""
        return []

    def chunk(self, piece: Piece) -> Json:
        chunk = self.envelope([self._part(piece)])
        if self._wanted.has_token_ids and not self._is_opened:
            chunk["prompt_token_ids"] = list(self._wanted.prompt_ids)
        self._is_opened = True
        return chunk

    def whole(self, pieces: Iterable[Piece]) -> Json:
        choices: dict[int, Json] = {}
        for piece in pieces:
            part = self._part(piece)
            choice = choices.setdefault(piece.index, part)
            if choice is not part:
                _fold(choice, part)
        ordered = [choices[index] for index in sorted(choices)]
        answer = {**self.envelope(ordered), "model": self._wanted.model, "created": self._wanted.created}
        if self._wanted.has_token_ids:
            answer["prompt_token_ids"] = list(self._wanted.prompt_ids)
        return answer

    def _part(self, piece: Piece) -> Json:
        part: Json = {
            "index": piece.index,
            "token_ids": [piece.draw.token_id],
            "logprobs": {"content": [self._entry(piece.draw)]} if self._wanted.has_logprobs else None,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop,
        }
        return {**part, "text": piece.text} if self._has_text else part

    def _entry(self, draw: Draw) -> Json:
        if self._has_text:
            return token_logprob(draw, self._token_text)
        top = [{"token_id": token_id, "logprob": finite(logprob)} for token_id, logprob in draw.top]
        return {"token_id": draw.token_id, "logprob": finite(draw.logprob), "top_logprobs": top}


def _fold(choice: Json, part: Json) -> None:
    """Add one part of a stream to a whole choice."""
    choice["token_ids"] += part["token_ids"]
    if part["logprobs"] is not None:
        choice["logprobs"]["content"] += part["logprobs"]["content"]
    if "text" in part:
        choice["text"] += part["text"]
    choice["finish_reason"], choice["stop_reason"] = part["finish_reason"], part["stop_reason"]
