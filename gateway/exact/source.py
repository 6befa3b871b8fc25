"""The source of calls that are prompted exactly: render, put stored ids in, generate from ids, put into words.

What comes out are events in the form of chat completions with the ids and log-probabilities of the generation, so that
nothing behind a source knows the difference. How the prompt came about is told in `prompting`. A client that leaves
closes the generation, as with every source. Engines that lag behind with words get several tokens at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, TypeVar, cast

import msgspec

from gateway.dialects.base import Json, object_of
from gateway.engines import Placement
from gateway.exact.engine import ExactEngine, Rendered, derendering
from gateway.exact.history import Conversation, Match, read_conversation
from gateway.exact.prompt import Fallback, Ids, after_answer, num_common, probes, prompting_of
from gateway.exact.threads import Threads
from gateway.exact.words import ChoiceWords, Piece, Wanted, chunk, opening, pieces_of, wanted_of, whole
from gateway.message_fold import decode_json_value, encode_json
from gateway.orders import Order
from gateway.sse import SseEvent, encode_event
from gateway.upstream import Answer, EngineRefused, Upstream
from tracker.errors import NotFound, Unavailable
from tracker.types import Prompting

T = TypeVar("T")


class ExactSource:
    """Has one call answered."""

    def __init__(self, upstream: Upstream, threads: Threads, index: int) -> None:
        self._upstream = upstream
        self._threads = threads
        self._index = index
        self.prompting: Prompting | None = None
        """How the prompt came about, once it did."""

    @asynccontextmanager
    async def ask(self, order: Order, placement: Placement) -> AsyncGenerator[ExactAnswer]:
        """Send the call; its answer has begun when this is entered. Raises `UpstreamFailed`."""
        target = order.target(placement.model)
        body = cast("Json", decode_json_value(order.dialect.engine_body(order.asked, target)))
        engine = ExactEngine(self._upstream, placement.engine, order.request_id)
        conversation = read_conversation(order.asked.fields, order.policy or "", order.episode_id)
        rendered, request = await engine.render(body)
        prompt = await self._prompt(engine, body, conversation, rendered, order.episode_id)
        request |= {"token_ids": list(prompt), "request_id": order.request_id, "return_token_ids": True}
        request |= {"output_mode": "text", "stream": order.asked.streams, "token_offsets": None}
        request["stream_options"] = {"include_usage": True} if order.asked.streams else None
        request["sampling_params"] = _sampling(rendered.sampling_params, target.sampling.max_tokens)
        async with engine.generate(request, streams=order.asked.streams) as generated:
            yield ExactAnswer(engine, body, generated, order.asked.num_choices)

    async def _prompt(
        self, engine: ExactEngine, body: Json, conversation: Conversation, rendered: Rendered, episode_id: str
    ) -> Ids:
        """The ids to generate from; what is told of them is noted."""
        full, match = rendered.token_ids, None
        reason = Fallback.MEDIA if rendered.features else None
        prompt: Ids | None = None
        if reason is None:
            match, reason = await self._match(episode_id, conversation)
        if match is not None:
            prompt, reason = await _continued(engine, body, conversation, full, match)
        chosen = full if prompt is None else prompt
        self.prompting = prompting_of(conversation, full, chosen, match, reason)
        return chosen

    async def _match(self, episode_id: str, conversation: Conversation) -> tuple[Match | None, Fallback | None]:
        if not conversation.has_answers:
            return None, Fallback.NO_ANSWER
        try:
            match = await self._threads.find(episode_id, self._index, conversation)
        except (Unavailable, NotFound):
            return None, Fallback.UNREAD
        return match, Fallback.NO_MATCH if match is None else None


class ExactAnswer:
    """An answer generated from ids, in the form of chat completions."""

    def __init__(self, engine: ExactEngine, body: Json, generated: Answer, num_choices: int) -> None:
        self._engine = engine
        self._asked = derendering(body)
        self._generated = generated
        self._streams = bool(body.get("stream"))
        self._wanted: Wanted = wanted_of(body)
        self._num_choices = num_choices
        self._words: defaultdict[int, ChoiceWords] = defaultdict(partial(ChoiceWords, self._wanted))
        self._envelope: Json = {"id": "", "created": int(time.time()), "model": body["model"]}
        self._prompt_ids: list[int] | None = None

    async def batches(self) -> AsyncGenerator[list[SseEvent]]:
        """Events that came together, up to the end mark or the transport's end."""
        async with aclosing(self._generated.batches()) as batches:
            async for events in batches:
                yield await self._streamed(events) if self._streams else [await self._whole(events[0])]

    async def _whole(self, event: SseEvent) -> SseEvent:
        generated = _said(event)
        if "choices" not in generated:
            return event
        pieces = pieces_of([generated], self._wanted)
        prompt_ids = cast("list[int]", generated.get("prompt_token_ids") or [])
        messages = await self._engine.derender(self._asked, prompt_ids, pieces)
        raw = encode_json(whole(self._envelope, generated, pieces, messages, self._wanted))
        return SseEvent(raw=raw, data=raw)

    async def _streamed(self, events: Sequence[SseEvent]) -> list[SseEvent]:
        """The words of what came, then whatever else came with it (usage, an error, the end mark)."""
        said = [(event, _said(event)) for event in events]
        told = [one for _, one in said if one.get("choices")]
        chunks = self._opened(told)
        pieces = pieces_of(told, self._wanted)
        parts = await _all(self._part(piece) for piece in pieces)
        chunks += [chunk(self._envelope, [part]) for part in parts]
        others = [self._other(event, one) for event, one in said if not one.get("choices")]
        return [*(_event(one) for one in chunks), *others]

    def _opened(self, told: Sequence[Json]) -> list[Json]:
        if self._prompt_ids is not None or not told:
            return []
        self._prompt_ids = cast("list[int]", told[0].get("prompt_token_ids") or [])
        return opening(self._envelope, self._num_choices, self._prompt_ids)

    async def _part(self, piece: Piece) -> Json:
        words = self._words[piece.index]
        delta, words.state = await self._engine.derender_piece(self._asked, self._prompt_ids or [], piece, words.state)
        return words.part(piece, delta)

    def _other(self, event: SseEvent, said: Json) -> SseEvent:
        if said.get("usage") is None:
            return event
        return _event({**chunk(self._envelope, []), "usage": said["usage"]})


async def _continued(
    engine: ExactEngine, body: Json, conversation: Conversation, full: Ids, match: Match
) -> tuple[Ids | None, Fallback | None]:
    """The prompt that goes on from stored ids, or why there is none."""
    stored = match.ending.ids()
    if num_common(stored, full) == len(stored):
        return full, None
    changed = probes(conversation.messages, match.num_messages)
    try:
        one, other = await _all(engine.render({**body, "messages": messages}) for messages in changed)
    except EngineRefused:
        return None, Fallback.REFUSED
    tail = after_answer(full, one[0].token_ids, other[0].token_ids, match, conversation)
    return (None, Fallback.NO_BOUNDARY) if tail is None else ([*stored, *tail], None)


async def _all(asked: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Ask together; raises the first failure, once none is left running."""
    answers = await asyncio.gather(*asked, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return cast("list[T]", answers)


def _sampling(rendered: dict[str, Any], limit: int | None) -> dict[str, Any]:
    """As rendered; with no limit of its own, an answer may be as long as there is room after these ids."""
    rest = {name: value for name, value in rendered.items() if name != "max_tokens"}
    return rest if limit is None else {**rest, "max_tokens": limit}


def _said(event: SseEvent) -> Json:
    """The object that an event is; nothing, where it is none."""
    if event.data is None or event.is_done:
        return {}
    try:
        said: object = decode_json_value(event.data)
    except (msgspec.DecodeError, ValueError):
        return {}
    return object_of(said)


def _event(said: Json) -> SseEvent:
    data = encode_json(said)
    return SseEvent(raw=encode_event(data), data=data)
