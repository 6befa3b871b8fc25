"""How many tokens a conversation is, before anything is generated: `/v1/messages/count_tokens`.

A policy's engine renders and counts, with its own template and tokenizer, so that the count is that of a call. Models
that are no policy are counted as their calls are where nothing is reported (`bills.py`): an estimate. Nothing is
recorded, no episode is needed.
"""

from __future__ import annotations

from typing import Final

from gateway.bills import Bills
from gateway.dialects.base import Asked, Json, decode_as
from gateway.engines import EnginePool, Serving
from gateway.routing import Route, UpstreamRoute
from tracker.errors import SettingsError, UpstreamFailed

RENDERED: Final = ("messages", "tools", "tool_choice", "add_generation_prompt", "continue_final_message")
"""What of a request becomes a part of its prompt."""


class TokenCounter:
    """Counts prompts."""

    def __init__(self, engines: EnginePool, bills: Bills) -> None:
        self._engines = engines
        self._bills = bills

    async def count(self, asked: Asked, route: Route) -> int:
        """The number of prompt tokens; raises `UpstreamFailed`, with the engine's own status where it refuses."""
        if isinstance(route, UpstreamRoute):
            return await self._bills.estimate(asked)
        try:
            placement = await self._engines.place(Serving(policy=route.name, version=0), None)
        except SettingsError as error:
            raise UpstreamFailed(error.message, status=503) from error
        return await self._engines.api.count_tokens(placement.engine, body_to_count(asked, placement.model))


def body_to_count(asked: Asked, model: str) -> Json:
    """What an engine is asked; an effort becomes what chat completions make of it for the template."""
    body: Json = {"model": model}
    body |= {name: decode_as(asked.fields[name], object, name) for name in RENDERED if name in asked.fields}
    switches: Json = {}
    if (effort := asked.fields.get("reasoning_effort")) is not None:
        switches |= {"reasoning_effort": decode_as(effort, str), "enable_thinking": True}
    if (given := asked.fields.get("chat_template_kwargs")) is not None:
        switches |= decode_as(given, Json, "chat_template_kwargs")
    if switches:
        body["chat_template_kwargs"] = switches
    return body
