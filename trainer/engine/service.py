"""What the engine does for a request, without HTTP: names, prompts, limits, and the pieces of an answer.

The rule: whole and streamed answers come from the same pieces (`Answer.pieces`), and whoever stops reading them, for
whatever reason, takes the sequences out of the scheduler. Which bytes go to the client is left to the app.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import msgspec
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tracker.errors import BadRequest, NotFound, Unavailable
from trainer.engine.answers import ChatShape, CompletionShape, Shape, TokenText, Wanted, usage
from trainer.engine.chat import encode, render
from trainer.engine.config import EngineConfig
from trainer.engine.protocol import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    GenerateBody,
    TextBody,
    answer_length,
    num_top_logprobs,
    sampling_settings,
    stop_strings,
)
from trainer.engine.scheduler import Ask, Event, Failure
from trainer.engine.text import ChoiceText, Piece
from trainer.engine.token_bodies import DerenderBody, GenerateTokensBody, completion_of, sampling_params_of
from trainer.engine.token_shape import TokensShape
from trainer.engine.weights import context_limit, end_ids
from trainer.engine.wording import Wording
from trainer.engine.worker import Ticket, Worker

MakeShape = Callable[[Wanted, TokenText], Shape]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that is about to be generated: its shape, and where its pieces come from."""

    wanted: Wanted
    shape: Shape
    is_streamed: bool
    pieces: AsyncGenerator[Piece, None]

    async def whole(self) -> dict[str, Any]:
        """Generate all of it and return one object."""
        pieces = [piece async for piece in self.pieces]
        return {**self.shape.whole(pieces), "usage": usage(len(self.wanted.prompt_ids), len(pieces))}


class Service:
    """One model with its adapters, as the app sees it."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: EngineConfig) -> None:
        self._tokenizer = tokenizer
        self._decode: Callable[..., str] = cast(Any, tokenizer).decode
        self._settings = settings
        self._path = str(model.name_or_path)
        self._base_name = settings.served_model_name or Path(self._path).name
        self._vocab_size: int = model.config.vocab_size
        self._max_len = context_limit(model.config, settings)
        self._end_ids = end_ids(model, tokenizer)
        self._started = int(time.time())
        self._token_text = lru_cache(maxsize=1 << 16)(self._one_token)
        self.worker = Worker(model, settings)

    def _one_token(self, token_id: int) -> str:
        return self._decode([token_id], skip_special_tokens=False)

    def models(self) -> list[dict[str, Any]]:
        """List the base and every adapter that can be asked, as vLLM does."""
        base = self._model(self._base_name, self._path, None)
        return [base, *(self._model(name, path, self._base_name) for name, path in self.worker.adapters().items())]

    def _model(self, name: str, root: str, parent: str | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._started,
            "owned_by": "hone",
            "root": root,
            "parent": parent,
            "max_model_len": self._max_len,
        }

    async def load_adapter(self, name: str, folder: Path) -> None:
        if name == self._base_name:
            raise BadRequest(f"The lora adapter '{name}' would hide the base model; rename it", param="lora_name")
        await self.worker.load_adapter(name, folder)

    def _version(self, name: str | None) -> str | None:
        """Return the version that a model name means; none given means the base, as at vLLM."""
        if name is None or name == self._base_name:
            return None
        if name not in self.worker.adapters():
            raise NotFound(f"The model `{name}` does not exist.", param="model")
        return name

    def render(self, body: ChatBody) -> dict[str, Any]:
        """Return what a chat is to the model, in the form of a generation that may be asked for."""
        self._version(body.model)
        prompt_ids = render(self._tokenizer, body)
        max_tokens = answer_length(body, len(prompt_ids), self._max_len)
        return {
            "request_id": f"chatcmpl-{uuid.uuid4().hex}",
            "token_ids": prompt_ids,
            "features": None,
            "sampling_params": sampling_params_of(body, max_tokens),
            "model": body.model,
            "stream": bool(body.stream),
            "stream_options": None if body.stream_options is None else msgspec.to_builtins(body.stream_options),
        }

    def tokenize(self, body: ChatBody | TextBody) -> dict[str, Any]:
        """Return the ids of a chat or of a text, however long it is."""
        self._version(body.model)
        if isinstance(body, ChatBody):
            ids = render(self._tokenizer, body)
        else:
            ids = encode(self._tokenizer, body.prompt, add_special_tokens=body.add_special_tokens is not False)
        return {"count": len(ids), "max_model_len": self._max_len, "tokens": ids, "token_strs": None}

    def detokenize(self, body: DetokenizeBody) -> dict[str, Any]:
        """Return ids as text, end tokens and other marks included."""
        self._version(body.model)
        self._check_ids(body.tokens)
        return {"prompt": self._decode(body.tokens, skip_special_tokens=False)}

    def generation(self, body: GenerateTokensBody) -> Answer:
        """Return an answer to ids, in ids."""
        completion = completion_of(body, self._max_len)
        return self.answer(completion, partial(TokensShape, has_text=body.output_mode == "text"), body.request_id)

    def wording(self, body: DerenderBody) -> Wording:
        """Return what puts the ids of this request into words."""
        self._version(body.model)
        chat = body.chat_request
        skip = chat is None or chat.skip_special_tokens is not False
        ids = [*(body.prompt_token_ids or ()), *(body.stream_state.window_ids if body.stream_state else ())]
        for generated in (body.generate_response, body.generate_chunk):
            ids += [] if generated is None else [i for choice in generated.choices for i in choice.token_ids or ()]
        self._check_ids(ids)
        decode = partial(self._decode, skip_special_tokens=skip)
        return Wording(decode, body.model or self._base_name, chat is not None and _has_tools(chat), body)

    def answer(
        self, body: ChatBody | CompletionBody, make_shape: MakeShape | None = None, request_id: str | None = None
    ) -> Answer:
        """Check a request to its end and return its answer; nothing is scheduled before its pieces are read."""
        version = self._version(body.model)
        prompt_ids = tuple(self._prompt_ids(body))
        num_choices = body.n or 1
        has_logprobs, _ = num_top_logprobs(body)
        is_chat = isinstance(body, ChatBody)
        asks = [self._ask(body, prompt_ids, index) for index in range(num_choices)]
        wanted = Wanted(
            answer_id=request_id or f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=body.model or self._base_name,
            prompt_ids=prompt_ids,
            num_choices=num_choices,
            has_logprobs=has_logprobs,
            has_token_ids=bool(body.return_token_ids),
            has_usage=bool(body.stream_options and body.stream_options.include_usage),
            has_tools=isinstance(body, ChatBody) and _has_tools(body),
        )
        token_text = _token_name if body.return_tokens_as_token_ids else self._token_text
        make = make_shape or (ChatShape if is_chat else CompletionShape)
        shape = make(wanted, token_text)
        texts = self._texts(body, prompt_ids, num_choices)
        return Answer(wanted, shape, bool(body.stream), self._pieces(version, asks, texts))

    def _prompt_ids(self, body: ChatBody | CompletionBody) -> list[int]:
        if isinstance(body, ChatBody):
            return render(self._tokenizer, body)
        ids = self._completion_ids(body.prompt)
        if not ids:
            raise BadRequest("the prompt is empty; give at least one token", param="prompt")
        self._check_ids(ids)
        return ids

    def _check_ids(self, ids: Sequence[int]) -> None:
        if not all(0 <= i < self._vocab_size for i in ids):
            raise BadRequest(f"there are token ids outside of 0 to {self._vocab_size - 1}", param="prompt")

    def _completion_ids(self, prompt: str | Sequence[int | str | list[int]]) -> list[int]:
        if isinstance(prompt, str):
            return encode(self._tokenizer, prompt, add_special_tokens=True)
        numbers = [one for one in prompt if isinstance(one, int)]
        if len(numbers) == len(prompt):
            return numbers
        if len(prompt) != 1 or isinstance(prompt[0], int):
            raise BadRequest("the embedded engine takes one prompt a request; send several requests", param="prompt")
        return self._completion_ids(prompt[0])

    def _ask(self, body: GenerateBody, prompt_ids: tuple[int, ...], index: int) -> Ask:
        ends = frozenset(body.stop_token_ids or ())
        return Ask(
            prompt_ids=prompt_ids,
            max_tokens=answer_length(body, len(prompt_ids), self._max_len),
            settings=sampling_settings(body, self._vocab_size),
            end_ids=ends if body.ignore_eos else ends | self._end_ids,
            # Each choice has a generator of its own, as if it had been asked for alone.
            seed=None if body.seed is None else body.seed + index,
            num_top=num_top_logprobs(body)[1],
        )

    def _texts(self, body: GenerateBody, prompt_ids: tuple[int, ...], num_choices: int) -> list[ChoiceText]:
        skip = body.skip_special_tokens is not False
        decode = partial(self._decode, skip_special_tokens=skip)
        stop = stop_strings(body)
        return [ChoiceText(index, decode, prompt_ids, stop) for index in range(num_choices)]

    async def _pieces(
        self, version: str | None, asks: list[Ask], texts: list[ChoiceText]
    ) -> AsyncGenerator[Piece, None]:
        """Schedule the sequences and yield their pieces as they come, until every choice has ended."""
        events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        tickets: list[Ticket] = self.worker.tickets(
            version, asks, lambda index, event: events.put_nowait((index, event))
        )
        try:
            await self.worker.submit(tickets)
            while not all(text.is_finished for text in texts):
                index, event = await events.get()
                if isinstance(event, Failure):
                    raise Unavailable(event.message)
                if texts[index].is_finished:
                    continue
                piece = texts[index].push(event)
                if texts[index].is_finished:
                    self.worker.cancel([tickets[index]])
                yield piece
        finally:
            self.worker.cancel(tickets)


def _has_tools(body: ChatBody) -> bool:
    return bool(body.tools) and body.tool_choice != "none"


def _token_name(token_id: int) -> str:
    """How vLLM writes a token in log-probabilities where its id was asked for: texts of two tokens may be equal."""
    return f"token_id:{token_id}"
