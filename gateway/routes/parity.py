"""`POST /v1/policies/{name}/parity`: does every engine read and score as the trainer does, which asks at its start."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends
from pydantic import Field, model_validator

from gateway.answers import JsonResponse, plain
from gateway.comparison import compare, refusal
from gateway.parity import ChatRendered, Expected, PointScored, TextRendered
from gateway.routes.access import Publisher, ServicesOf
from gateway.routes.bodies import Body, Text, body_of, documented
from gateway.routes.policies import Logprob, TokenId
from tracker.errors import Conflict, NotFound

router = APIRouter(prefix="/v1/policies", tags=["policies"])
MAX_INPUTS: Final = 32
MAX_POINTS: Final = 64
MAX_TOKENS: Final = 2**17
Ids = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_TOKENS)]


class RenderedBody(Body):
    """What some input is to the trainer; `pieces` are the texts of the ids, for people."""

    name: Text
    token_ids: Annotated[list[TokenId], Field(max_length=MAX_TOKENS)]
    pieces: list[str] = Field(default_factory=list[str], max_length=MAX_TOKENS)


class TextBody(RenderedBody):
    """A text without a template."""

    text: Annotated[str, Field(max_length=2**16)]


class ChatBody(RenderedBody):
    """A chat up to where the assistant answers."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=64)]
    tools: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]], max_length=64)


class PointBody(Body):
    """The likeliest tokens after a prompt, as the trainer's base model scores them."""

    prompt_ids: Ids
    token_ids: Annotated[list[TokenId], Field(min_length=1, max_length=20)]
    logprobs: Annotated[list[Logprob], Field(min_length=1, max_length=20)]

    @model_validator(mode="after")
    def _one_each(self) -> PointBody:
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError("give one of logprobs for each of token_ids")
        return self


class ParityBody(Body):
    """What the trainer is: its arithmetic, its ids, its scores."""

    dtype: Text
    noise: Annotated[float, Field(ge=0, le=1e6)]
    texts: list[TextBody] = Field(default_factory=list[TextBody], max_length=MAX_INPUTS)
    chats: list[ChatBody] = Field(default_factory=list[ChatBody], max_length=MAX_INPUTS)
    points: list[PointBody] = Field(default_factory=list[PointBody], max_length=MAX_POINTS)


@router.post("/{name}/parity", openapi_extra=documented(ParityBody))
async def check_parity(
    caller: Publisher,
    services: ServicesOf,
    name: str,
    body: Annotated[ParityBody, Depends(body_of(ParityBody))],
) -> Any:
    """Compare every engine of the policy with the trainer; 409 names the first thing that differs."""
    del caller
    if name not in [policy.name for policy in services.settings.stores.policies]:
        raise NotFound(f"There is no policy {name!r}.", param="policy", code="unknown_policy")
    found = await compare(services.engines, name, _expected(body))
    line = refusal(found)
    if line:
        raise Conflict(line, code="parity")
    return JsonResponse({"policy": name, "engines": plain(found)})


def _expected(body: ParityBody) -> Expected:
    def each(items: list[Any], kind: Any) -> tuple[Any, ...]:
        return tuple(msgspec.convert(item.model_dump(), kind) for item in items)

    return Expected(
        dtype=body.dtype,
        noise=body.noise,
        texts=each(body.texts, TextRendered),
        chats=each(body.chats, ChatRendered),
        points=each(body.points, PointScored),
    )
