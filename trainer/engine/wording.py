"""From ids to an assistant's message, at once or chunk by chunk, with the state in the client's hands.

The rule: chunks put into words one by one say what the whole says, however the ids were cut. Nothing is remembered
between two chunks. A stop string is no concern here: ids that make one up make its text.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tracker.errors import BadRequest
from trainer.engine.answers import tool_call, usage
from trainer.engine.chat import Said, ToolCallReader
from trainer.engine.text import Decode, Detokeniser
from trainer.engine.token_bodies import Chosen, DerenderBody, Generated, WordingState

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wording:
    """Puts the ids of one request into words."""

    decode: Decode
    model: str
    has_tools: bool
    body: DerenderBody

    def whole(self) -> Json:
        """`chat.completion` from a whole generation."""
        generated = self._generated(self.body.generate_response, "generate_response")
        num_sampled = sum(len(choice.token_ids or ()) for choice in generated.choices)
        return {
            **self._envelope(generated, "chat.completion"),
            "choices": [self._whole_choice(choice, self._prompt_ids(generated)) for choice in generated.choices],
            "usage": usage(self.body.prompt_tokens or 0, num_sampled),
        }

    def chunk(self) -> Json:
        """`chat.completion.chunk` from one chunk, and the state for the next."""
        generated = self._generated(self.body.generate_chunk, "generate_chunk")
        if len(generated.choices) > 1:
            raise BadRequest("send the choices of a chunk one by one: each has a state of its own", param="choices")
        state = self.body.stream_state
        words = _Words(self.decode, self._prompt_ids(generated), self.has_tools, state)
        choices = [self._chunk_choice(choice, words) for choice in generated.choices]
        return {
            "chunk": {**self._envelope(generated, "chat.completion.chunk"), "choices": choices, "usage": None},
            "stream_state": msgspec.to_builtins(words.state()),
        }

    def _whole_choice(self, choice: Chosen, prompt_ids: Sequence[int]) -> Json:
        if not choice.token_ids:
            raise BadRequest(f"choice {choice.index} has empty or null token_ids", param="choices")
        said = _Words(self.decode, prompt_ids, self.has_tools, None).push(choice.token_ids, is_last=True)
        message: Json = {"role": "assistant", "content": said.content}
        if said.tool_calls:
            message["content"] = said.content or None
            message["tool_calls"] = [tool_call(call) for call in said.tool_calls]
        return {**_ended(choice), "message": message}

    def _chunk_choice(self, choice: Chosen, words: _Words) -> Json:
        delta: Json = {} if words.role_sent else {"role": "assistant"}
        said = words.push(choice.token_ids or (), is_last=choice.finish_reason is not None)
        delta["content"] = said.content or None
        if said.tool_calls:
            delta["tool_calls"] = [{"index": call.index, **tool_call(call)} for call in said.tool_calls]
        return {**_ended(choice), "delta": delta}

    def _generated(self, given: Generated | None, name: str) -> Generated:
        if given is None:
            raise BadRequest(f"{name} is missing", param=name)
        return given

    def _prompt_ids(self, generated: Generated) -> Sequence[int]:
        return self.body.prompt_token_ids or generated.prompt_token_ids or ()

    def _envelope(self, generated: Generated, kind: str) -> Json:
        return {"id": generated.request_id, "object": kind, "created": int(time.time()), "model": self.model}


class _Words:
    """The words of one choice as they come, from a state and back to one."""

    def __init__(self, decode: Decode, prompt_ids: Sequence[int], has_tools: bool, state: WordingState | None) -> None:
        self._reader = ToolCallReader() if has_tools else None
        if state is None:
            self._text = Detokeniser(decode, prompt_ids)
            self.role_sent = False
            return
        self._text = Detokeniser.resumed(decode, state.window_ids, state.num_read)
        self.role_sent = state.role_sent
        if self._reader is not None:
            self._reader = ToolCallReader(state.held, state.num_calls)

    def push(self, ids: Sequence[int], *, is_last: bool) -> Said:
        """Take the next ids, one by one, so that what comes out does not depend on how they were cut."""
        self.role_sent = True
        texts = [self._text.push(token_id) for token_id in ids]
        texts += [self._text.flush()] if is_last else []
        if self._reader is None:
            return Said("".join(texts))
        said = [self._reader.push(text, is_last=False) for text in texts]
        said += [self._reader.push("", is_last=True)] if is_last else []
        return Said("".join(one.content for one in said), tuple(call for one in said for call in one.tool_calls))

    def state(self) -> WordingState:
        window_ids, num_read = self._text.window()
        return WordingState(
            window_ids=window_ids,
            num_read=num_read,
            held="" if self._reader is None else self._reader.held,
            num_calls=0 if self._reader is None else self._reader.num_calls,
            role_sent=self.role_sent,
        )


def _ended(choice: Chosen) -> Json:
    return {
        "index": choice.index,
        "logprobs": None,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "token_ids": choice.token_ids,
    }
