"""What an engine's answer says about tokens, folded from its events, and the answer without what was not asked for.

The engine is always asked for token ids, log-probabilities and usage. `Capture.feed` takes them out of each event,
strips those that the agent did not ask for in place, and leaves the rest of the event alone. Tokens come from the
engine alone: nothing is padded, guessed or read from text. A choice with something amiss is kept with its reason. A
whole answer is a stream of one event. Pure; what an error means for the call is left to `proxy.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, cast

from gateway.dialects.base import Asked, Json
from gateway.message_fold import MessageFold, hide_reasoning
from gateway.pieces import MAX_TOKEN_ID, NO_LOGPROB, Piece, Scores, logprobs_of
from tracker.errors import UpstreamFailed
from tracker.types import Choice, Reason

RARE: Final = 20
"""What less than one answer in so many ends in is no end token."""
MAX_COUNT: Final = 2**31
"""More than any answer has tokens or choices; JSON knows numbers that no record can hold."""
MALFORMED: Final = "The engine's answer is not understood"


class EndTokens:
    """The end tokens of one policy, learned from answers that ended by themselves.

    The gateway has no tokenizer. An engine says "length" where the limit cut an answer, since it looks for an end
    token first; but other finish reasons ("tool_calls") can hide that, and then the last id is compared with what
    answers commonly end in.
    """

    def __init__(self) -> None:
        self._seen: Counter[int] = Counter()

    def learn(self, ids: tuple[int, ...], limit: int | None, *, by_itself: bool) -> None:
        """Take the last id of an answer that ended before its limit, without a stop string."""
        if by_itself and ids and (limit is None or len(ids) < limit):
            self._seen[ids[-1]] += 1

    def is_truncated(self, ids: tuple[int, ...], limit: int | None, finish_reason: str | None) -> bool:
        """Whether the limit was used up and the last id is no end token."""
        if finish_reason == "length":
            return True
        if limit is None or len(ids) < limit or not ids:
            return False
        num_seen = self._seen.total()
        return self._seen[ids[-1]] * RARE <= num_seen if num_seen else finish_reason != "stop"


class Capture:
    """Folds the events of one answer; of a model that is no policy, words and usage alone (`takes_tokens`)."""

    def __init__(self, asked: Asked, *, takes_tokens: bool = True) -> None:
        self._asked = asked
        self._takes_tokens = takes_tokens
        self._choices: dict[int, _ChoiceFold] = {}
        self._num_finished = 0
        self._prompt: Sequence[int] = ()
        self.usage_prompt_tokens: int | None = None
        self.usage_completion_tokens: int | None = None

    @property
    def is_finished(self) -> bool:
        """Whether every choice that was asked for has its finish reason."""
        return self._num_finished >= self._asked.num_choices

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return tuple(self._prompt)

    def feed(self, event: Json) -> bool:
        """Take what an event says and strip it in place; False if nothing of it is for the agent."""
        choices = event.get("choices")
        if not isinstance(choices, list):
            raise UpstreamFailed(f"{MALFORMED}: an event without choices.")
        self._take_usage(event)
        if self._takes_tokens:
            self._take_prompt(event)
        for choice in cast("list[object]", choices):
            if not isinstance(choice, dict):
                raise UpstreamFailed(f"{MALFORMED}: a choice that is no object.")
            self._take_choice(cast("Json", choice))
        counts = event.get("usage")
        if not self._asked.shows_usage:
            event.pop("usage", None)
        return len(cast("list[object]", choices)) > 0 or counts is None or self._asked.shows_usage

    @property
    def takes_pieces(self) -> bool:
        """Whether nothing of a piece's tokens is for the agent, so that `take_piece` may stand for `feed`."""
        return self._takes_tokens and not self._asked.shows_logprobs and not self._asked.shows_token_ids

    def take_piece(self, piece: Piece) -> None:
        """Take an event that is a piece; what of it is for the agent are its words."""
        choice = piece.choices[0]
        fold = self._choices.get(choice.index)
        if fold is None:
            fold = self._choices[choice.index] = _ChoiceFold()
        if not fold.is_spoiled:
            fold.ids += choice.token_ids
        for scored in choice.logprobs.content:
            fold.scores.append(scored.logprob)
        fold.words.append(choice.delta.content)

    def choices(self, limit: int | None, ends: EndTokens) -> tuple[Choice, ...]:
        """Every choice as far as it came, each with what is amiss with it."""
        folds = sorted(self._choices.items())
        wrong = self._usage_mismatch()
        for _, fold in folds:
            is_sound = fold.reason(bool(self._prompt), wrong) is None and not self._asked.has_stop
            ends.learn(tuple(fold.ids), limit, by_itself=fold.ended_by_itself and is_sound)
        return tuple(
            Choice(
                index=index,
                sampled_ids=tuple(fold.ids),
                logprobs=fold.reported_logprobs(),
                finish_reason=fold.finish_reason,
                truncated=ends.is_truncated(tuple(fold.ids), limit, fold.finish_reason),
                message=fold.message.encode(),
                reason=fold.reason(bool(self._prompt), wrong) if self._takes_tokens else None,
            )
            for index, fold in folds
        )

    def words(self) -> list[object]:
        """The message of each choice, as far as it came."""
        return [fold.message.value() for _, fold in sorted(self._choices.items())]

    def detail(self) -> str:
        """For people: the counts that do not agree, if any."""
        told = [
            f"choice {index}: {len(fold.ids)} ids, {len(fold.scores)} log-probabilities"
            for index, fold in sorted(self._choices.items())
            if len(fold.ids) != len(fold.scores) or fold.has_bad_score
        ]
        if self._usage_mismatch():
            total = sum(len(fold.ids) for fold in self._choices.values())
            told.append(
                f"usage says {self.usage_prompt_tokens} + {self.usage_completion_tokens} tokens, "
                f"the ids are {len(self._prompt)} + {total}"
            )
        return "; ".join(told)

    def _usage_mismatch(self) -> bool:
        if not self._takes_tokens:
            return False
        total = sum(len(fold.ids) for fold in self._choices.values())
        if self.usage_completion_tokens is not None and self.usage_completion_tokens != total:
            return True
        return bool(self.usage_prompt_tokens) and bool(self._prompt) and self.usage_prompt_tokens != len(self._prompt)

    def _take_usage(self, event: Json) -> None:
        usage = event.get("usage")
        if isinstance(usage, dict):
            counts = cast("Json", usage)
            self.usage_prompt_tokens = _count(counts.get("prompt_tokens"))
            self.usage_completion_tokens = _count(counts.get("completion_tokens"))

    def _take_prompt(self, holder: Json) -> None:
        if "prompt_token_ids" in holder:
            ids = _token_ids(holder["prompt_token_ids"])
            if ids and not self._prompt:
                self._prompt = ids
            if not self._asked.shows_token_ids:
                del holder["prompt_token_ids"]

    def _take_choice(self, choice: Json) -> None:
        index = choice.get("index", 0)
        if type(index) is not int or not 0 <= index < MAX_COUNT:
            raise UpstreamFailed(f"{MALFORMED}: a choice without an index.")
        fold = self._choices.get(index)
        if fold is None:
            fold = self._choices[index] = _ChoiceFold()
        if self._takes_tokens:
            self._take_tokens(choice, fold)
        self._take_words(choice, fold)
        if choice.get("finish_reason") is not None and fold.finish_reason is None:
            fold.finish(str(choice["finish_reason"]), choice.get("stop_reason"))
            self._num_finished += 1

    def _take_tokens(self, choice: Json, fold: _ChoiceFold) -> None:
        self._take_prompt(choice)
        fold.take_ids(choice.get("token_ids"))
        fold.take_logprobs(choice.get("logprobs"))
        if not self._asked.shows_token_ids:
            choice.pop("token_ids", None)
        if not self._asked.shows_logprobs:
            choice.pop("logprobs", None)

    def _take_words(self, choice: Json, fold: _ChoiceFold) -> None:
        if isinstance(text := choice.get("text"), str):
            fold.message.add_text(text)
            return
        for name in ("delta", "message"):
            words = choice.get(name)
            if not isinstance(words, dict):
                continue
            said = cast("Json", words)
            if not self._asked.shows_reasoning:
                hide_reasoning(said)
            if name == "delta":
                fold.message.add_delta(said)
            else:
                fold.message.set_whole(said)


class _ChoiceFold:
    """One choice as it comes in."""

    __slots__ = ("ended_by_itself", "finish_reason", "has_bad_score", "ids", "is_spoiled", "message", "scores", "words")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.scores: list[float] = []
        self.is_spoiled = False
        self.has_bad_score = False
        self.finish_reason: str | None = None
        self.ended_by_itself = False
        self.message = MessageFold()
        self.words = self.message.contents
        """Where pieces of its text go."""

    def take_ids(self, value: object) -> None:
        """Add a piece's ids; one that is no token id spoils all, since its place could not be told."""
        ids = _token_ids(value)
        if value and not ids:
            self.is_spoiled = True
        if self.is_spoiled:
            self.ids.clear()
        else:
            self.ids += ids

    def take_logprobs(self, value: object) -> None:
        """Chat: `content[].logprob`; completions: `token_logprobs`."""
        if type(value) is Scores:
            self.scores += logprobs_of(value)
        if not isinstance(value, dict):
            return
        block = cast("Json", value)
        content = block.get("content")
        if isinstance(content, list):
            entries = cast("list[Any]", content)
            self._take_scores([cast("Json", one).get("logprob") if type(one) is dict else None for one in entries])
        elif isinstance(scores := block.get("token_logprobs"), list):
            self._take_scores(cast("list[Any]", scores))

    def finish(self, reason: str, stop_reason: object) -> None:
        """Note how it ended; a stop reason names the stop string or token that the agent gave."""
        self.finish_reason = reason
        self.ended_by_itself = reason == "stop" and stop_reason is None

    def reported_logprobs(self) -> tuple[float, ...]:
        """As the engine gave them; none at all where one is missing or no number, since none is made up."""
        return tuple(self.scores) if all(map(math.isfinite, self.scores)) else ()

    def reason(self, has_prompt: bool, usage_is_wrong: bool) -> Reason | None:
        """The first thing amiss, from the coarsest on."""
        if not self.ids:
            return Reason.NO_IDS
        if not has_prompt:
            return Reason.NO_PROMPT_IDS
        if usage_is_wrong:
            return Reason.IDS_USAGE_MISMATCH
        if len(self.ids) != len(self.scores):
            return Reason.IDS_LOGPROBS_MISMATCH
        return Reason.BAD_LOGPROB if self.has_bad_score else None

    def _take_scores(self, scores: list[Any]) -> None:
        if set(map(type, scores)) != {float}:
            scores = [float(score) if type(score) in (float, int) else math.nan for score in scores]
        self.scores += scores
        if scores and not (min(scores) > NO_LOGPROB and math.isfinite(sum(scores))):
            self.has_bad_score = True


def _token_ids(value: object) -> Sequence[int]:
    """The ids, or none at all if any of them is no token id; a tuple of them is known to be sound."""
    if isinstance(value, tuple):
        return cast("tuple[int, ...]", value)
    if not isinstance(value, list):
        return []
    ids = cast("list[Any]", value)
    is_sound = set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < MAX_TOKEN_ID
    return ids if is_sound else []


def _count(value: object) -> int | None:
    """A count as it was told; one that no answer could have stays wrong."""
    return max(-1, min(value, MAX_COUNT)) if type(value) is int else None
