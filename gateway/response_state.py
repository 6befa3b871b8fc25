"""What `previous_response_id` stands for: the conversation of an earlier call and its answer, put before the input.

An answer's id leads to its episode, where the call is recorded with its whole conversation, live or archived: so one
look-up is enough however long the chain is, and any gateway of the same stores can do it. Calls that ended in this
process a moment ago are kept, so that a chain does not read its episode again at each step; whether that still exists,
and for this tenant, is asked every time. Of an archived episode the archive alone is asked: what was removed or
shredded there is gone here too. Only an answer that was completed can be continued.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, cast

from gateway.dependencies import Services
from gateway.dialects.base import Asked
from gateway.dialects.responses.dialect import ID_PREFIX, answer_items, recorded_response, with_items
from gateway.identity import episode_id_of
from gateway.message_fold import decode_json_value
from gateway.story import recorded_calls
from tracker.errors import BadRequest, NotFound
from tracker.types import Call, CallState, EpisodeRow, EpisodeState

MAX_KEPT_BYTES: Final = 32 * 2**20
DIALECT: Final = "responses"

Items = tuple[bytes, ...]


class ResponseState:
    """Finds earlier answers; one for each process."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._kept: OrderedDict[str, Items] = OrderedDict()
        self._num_bytes = 0

    async def expand(self, tenant: str, asked: Asked, episode_id: str | None) -> Asked:
        """The request with what it continues; raises `BadRequest` if there is no such answer.

        The key of one episode, whose id is given then, goes on from no other's answers: it could read them so.
        """
        if asked.previous is None:
            return asked
        if episode_id not in (None, episode_id_of(asked.previous)):
            raise _not_found(asked.previous)
        return with_items(asked, (*await self._find(tenant, asked.previous), *asked.messages))

    async def read(self, tenant: str, call_id: str, episode_id: str | None) -> bytes:
        """An answer as it was given; the key of one episode reads no other. Raises `NotFound`."""
        if episode_id is None or episode_id == episode_id_of(call_id):
            row = await self._row(tenant, call_id)
            call = None if row is None else await self._recorded_in(row, call_id)
            if call is not None:
                return recorded_response(call)
        told = f"Response with id {call_id[:200]!r} not found: name an answer that is complete."
        raise NotFound(told, param="response_id", code="response_not_found")

    def keep(self, call: Call) -> None:
        """Remember a call that was recorded."""
        items = _items(call) if call.dialect == DIALECT and call.state is CallState.COMPLETED else None
        if items is not None:
            self._put(call.call_id, items)

    async def _find(self, tenant: str, call_id: str) -> Items:
        row = await self._row(tenant, call_id)
        is_open = row is not None and row.state is not EpisodeState.ARCHIVED
        if is_open and call_id in self._kept:
            self._kept.move_to_end(call_id)
            return self._kept[call_id]
        call = None if row is None else await self._recorded_in(row, call_id)
        items = None if call is None else _items(call)
        if items is None:
            raise _not_found(call_id)
        return self._put(call_id, items) if is_open else items

    async def _row(self, tenant: str, call_id: str) -> EpisodeRow | None:
        """The episode that an answer's id leads to, if it is there for this tenant."""
        episode_id = episode_id_of(call_id) if call_id.startswith(ID_PREFIX) else None
        try:
            return None if episode_id is None else await self._services.ledger.get_episode(tenant, episode_id)
        except NotFound:
            return None

    async def _recorded_in(self, row: EpisodeRow, call_id: str) -> Call | None:
        """The call, if its answer was completed."""
        for call in await recorded_calls(self._services, row):
            if call.call_id == call_id and call.state is CallState.COMPLETED:
                return call
        return None

    def _put(self, call_id: str, items: Items) -> Items:
        if call_id not in self._kept:
            self._kept[call_id] = items
            self._num_bytes += sum(map(len, items))
        while self._num_bytes > MAX_KEPT_BYTES:
            _, dropped = self._kept.popitem(last=False)
            self._num_bytes -= sum(map(len, dropped))
        return items


def _items(call: Call) -> Items | None:
    """The whole conversation up to and with the answer; `None` if that is no message."""
    message: object = decode_json_value(call.choices[0].message) if call.choices else None
    if not isinstance(message, dict):
        return None
    return (*call.messages, *answer_items(cast("dict[str, object]", message), call.call_id))


def _not_found(call_id: str) -> BadRequest:
    told = (
        f"Previous response with id {call_id[:200]!r} not found: name an answer that was completed, or send its items."
    )
    return BadRequest(told, param="previous_response_id", code="previous_response_not_found")
