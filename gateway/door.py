"""The agent's door: a raw ASGI application for agents' paths, since bodies and streams are much cheaper this way.

It reads and bounds the request, asks who is calling, for which episode and which policy, and hands the call to
`proxy.py`. Every refusal is an error in the dialect's form, raised before anything is stored. What agents never reach
has no route here: paths are matched against a list, never passed through.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from time import perf_counter
from typing import Any, Final

import msgspec

from gateway.admission import Admission
from gateway.arrivals import Arrival
from gateway.auth import Caller
from gateway.conversation import conversation_of
from gateway.deadlines import Deadlines
from gateway.dependencies import Services
from gateway.dialects.base import Dialect, Limits
from gateway.dialects.chat import Chat
from gateway.dialects.completions import Completions
from gateway.dialects.messages.dialect import Messages
from gateway.dialects.responses.dialect import Responses
from gateway.embeddings import Embeddings, Servers, parse_embeddings
from gateway.exact.threads import Threads
from gateway.identity import call_id_of
from gateway.joining import Joining
from gateway.meters import Meter, Payer
from gateway.metrics import METHODS, NONE, OTHER
from gateway.orders import Order, sampling_for
from gateway.paths import AgentPath, normalise
from gateway.proxy import Proxy
from gateway.replies import ClientWatch, Message, Receive, Reply, Send
from gateway.requests import RequestHeaders
from gateway.response_state import ResponseState
from gateway.roles import Shape, shape_of
from gateway.routing import JOKER, PolicyRoute, UpstreamRoute, find_route
from gateway.sources import Sources
from gateway.tokens import TokenCounter
from gateway.upstream import Upstream
from gateway.upstreams import TextSource, Upstreams
from tracker.errors import BadRequest, Gone, HoneError, NotFound, TooLarge
from tracker.types import ID_PATTERN, Sampling, Scope

__all__ = ["AgentPath", "Door", "normalise"]

LOG: Final = logging.getLogger("hone.door")
NO_PATH: Final = (
    "There is no such path; agents call /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages, /v1/models."
)
PATH: Final = "hone.path"
"""Where a scope has the agent's path, once it was read."""
EMBEDDINGS: Final = "embeddings"
COUNT: Final = "messages/count_tokens"
OTHER_ROUTES: Final = frozenset({EMBEDDINGS, COUNT, "models"})
"""What agents may ask besides calls."""
_ROLE: Final = re.compile(ID_PATTERN)
_RETRY: Final = re.compile(r"[0-9]{1,4}")


class SlowBody(BadRequest):
    """The body did not come in time."""

    status = 408
    code = "body_timeout"


class WrongMethod(BadRequest):
    """The path exists, under another method."""

    status = 405
    code = "method_not_allowed"


class Hangup(Exception):
    """The client left while it sent its body."""


class Door:
    """Serves agents; one for each process, closed with `close`."""

    def __init__(self, services: Services) -> None:
        settings = services.settings
        self._services = services
        self._deadlines = deadlines = Deadlines()
        self._upstream = Upstream(
            settings.engine_key, settings.call_timeout_s, idle_s=settings.stream_idle_s, deadlines=deadlines
        )
        self._admission = Admission(services)
        self._joining = Joining(services, self._admission)
        self._upstreams = Upstreams(settings.upstreams, settings.call_timeout_s, settings.stream_idle_s, deadlines)
        sources = Sources(self._upstream, TextSource(self._upstreams), Threads(services.store))
        self._proxy = Proxy(services, sources, self._admission, deadlines)
        self._responses = ResponseState(services)
        self._limits = Limits(max_choices=settings.max_choices, max_output_tokens=settings.max_output_tokens)
        self._messages = Messages()
        self._counter = TokenCounter(services.engines, self._proxy.bills)
        self._dialects: dict[str, Dialect] = {
            "chat/completions": Chat(),
            "completions": Completions(),
            "messages": self._messages,
            "responses": Responses(),
        }
        self._policies = tuple(
            PolicyRoute(
                name=p.name,
                aliases=p.aliases,
                sampling=Sampling(**p.sampling.model_dump()),
                prompting=p.prompting,
            )
            for p in settings.stores.policies
        )
        self._served = tuple(upstream.served for upstream in settings.upstreams)
        servers = Servers(services.engines, self._upstream, self._upstreams, self._policies, self._served)
        self._embeddings = Embeddings(servers, settings.call_timeout_s)

    async def close(self) -> None:
        """Close the connections to engines and upstreams."""
        await self._upstream.close()
        await self._upstreams.close()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        arrived_s, reply = perf_counter(), Reply(send)
        try:
            await self._answer(scope, receive, reply)
        except HoneError as error:
            self._services.metrics.refused(error.status, error.code)
            await reply.fail(error)
        except Hangup:
            return
        except Exception as bug:  # the last that can answer it: an agent gets an error in its own form whatever it was
            LOG.error("%s %s failed", scope["method"], scope["path"], exc_info=bug)
            reply.add_header("connection", "close")  # as the server does after a bug: a next request would be reset
            if not reply.status:
                await reply.fail(HoneError("The gateway failed."))
            raise
        finally:
            self._note(scope, reply, arrived_s)

    def _note(self, scope: Message, reply: Reply, arrived_s: float) -> None:
        """Count a request that was answered, or left."""
        metrics = self._services.metrics
        method = scope["method"] if scope["method"] in METHODS else OTHER
        metrics.answered(reply.route, method, reply.dialect, reply.status)
        if reply.first_event_s is not None:
            metrics.first_token.of(reply.dialect).observe(reply.first_event_s - arrived_s)

    async def _answer(self, scope: Message, receive: Receive, reply: Reply) -> None:
        path: AgentPath | None = scope.get(PATH) or normalise(scope.get("raw_path") or str(scope["path"]).encode())
        if path is None:
            raise NotFound(NO_PATH)
        dialect = self._dialects.get(path.route)
        if dialect is not None or path.route in OTHER_ROUTES:
            reply.route, reply.dialect = f"/v1/{path.route}", NONE if dialect is None else dialect.name
        reply.form = self._messages if path.route == COUNT else dialect or reply.form
        headers = RequestHeaders(scope["headers"])
        address, _ = scope.get("client") or (None, 0)
        caller = await self._services.keys.authenticate(headers.one("authorization"), headers.one("x-api-key"), address)
        if caller.episode_id is None:
            caller.require(Scope.AGENT)
        if path.route == "models" or path.response is not None:
            _require_method("GET", scope["method"], reply)
            await reply.whole(await self._shown(path, caller, scope["query_string"]))
            return
        if dialect is None and path.route not in (COUNT, EMBEDDINGS):
            raise NotFound(NO_PATH, code="unknown_path")
        _require_method("POST", scope["method"], reply)
        body = await self._read_body(headers, receive)
        if path.route == EMBEDDINGS:
            await self._embed(caller, body, reply, ClientWatch(scope, receive))
            return
        if dialect is None:
            await reply.whole(await self._count(body))
            return
        arrival = await self._arrival(dialect, path, headers, caller, body)
        async with ClientWatch(scope, receive) as client:
            await self._serve(dialect, arrival, headers, reply, client)

    async def _shown(self, path: AgentPath, caller: Caller, query: bytes) -> bytes:
        """What can be read here: an answer given earlier, one model, or all of them."""
        if path.response is None:
            return self._models(path.model)
        if b"stream=true" in query.lower().split(b"&"):
            raise BadRequest("stream: an answer that is there already is given whole; leave it out.", param="stream")
        if caller.episode_id is not None:  # a session key whose opener was revoked reads nothing
            row = await self._services.ledger.get_episode(caller.tenant, caller.episode_id)
            await self._services.keys.opener(caller.tenant, row.head.key_id)
        return await self._responses.read(caller.tenant, path.response, caller.episode_id)

    async def _serve(
        self, dialect: Dialect, arrival: Arrival, headers: RequestHeaders, reply: Reply, client: ClientWatch
    ) -> None:
        """Serve a call; in another episode if the one it was given ended a moment ago and the call did not name it."""
        async with arrival.meter:
            order = await self._order(dialect, arrival, headers, reply)
            try:
                call = await self._proxy.serve(order, reply, client)
            except Gone:
                if order.trail is None:
                    raise
                order = await self._order(dialect, arrival, headers, reply, order.episode_id)
                call = await self._proxy.serve(order, reply, client)
        if call is not None:
            self._responses.keep(call)
            self._services.shadows.note(call)

    async def _meter(self, caller: Caller) -> Meter:
        """Whose key a call counts against: with a session key, the one that opened its episode."""
        key_id, quota = caller.key_id, caller.quota
        if caller.episode_id is not None:
            key_id = (await self._admission.admit(caller.tenant, caller.episode_id)).head.key_id
            quota = await self._services.keys.opener(caller.tenant, key_id)
        return self._services.meters.meter(Payer(key_id=key_id, quota=quota))

    async def _embed(self, caller: Caller, body: bytes, reply: Reply, watch: ClientWatch) -> None:
        """Passed through and not recorded; the key of an episode that has ended is good for nothing here either."""
        asked = parse_embeddings(body)
        if caller.episode_id is not None:
            await self._admission.check_open(caller.tenant, caller.episode_id)
        async with await self._meter(caller) as meter, watch as client:
            meter.take(await self._embeddings.serve(asked, reply, client))

    async def _read_body(self, headers: RequestHeaders, receive: Receive) -> bytes:
        settings = self._services.settings
        if headers.one("content-encoding") not in (None, "identity"):
            raise BadRequest("Send the body without a content-encoding.", param="content-encoding")
        try:
            with self._deadlines.within(settings.body_timeout_s):
                return await _read(receive, headers.one("content-length"), settings.max_body_bytes)
        except TimeoutError:
            told = f"The body did not come within {settings.body_timeout_s:g} s (HONE_BODY_TIMEOUT_S)."
            raise SlowBody(told) from None

    async def _arrival(
        self, dialect: Dialect, path: AgentPath, headers: RequestHeaders, caller: Caller, body: bytes
    ) -> Arrival:
        """The call as it was understood; raises what is wrong with it."""
        asked = await self._responses.expand(caller.tenant, dialect.parse(body, self._limits), caller.episode_id)
        retry = headers.one("x-stainless-retry-count") or "0"
        return Arrival(
            caller=caller,
            path=path,
            asked=asked,
            conversation=conversation_of(asked),
            body_digest=hashlib.sha256(body).hexdigest(),
            meter=await self._meter(caller),
            retry=int(retry) if _RETRY.fullmatch(retry) else 0,
        )

    async def _order(
        self, dialect: Dialect, arrival: Arrival, headers: RequestHeaders, reply: Reply, avoided: str = ""
    ) -> Order:
        """Everything that can refuse a call before anything is written."""
        asked = arrival.asked
        route = find_route(asked.model, self._policies, self._served)
        if isinstance(route, UpstreamRoute):
            reply.add_header("x-hone-upstream", route.upstream)
        else:
            reply.add_header("x-hone-policy", route.name)
        shape = _shape(headers.one("x-hone-role"), arrival)
        joined = await self._joining.join(arrival, headers, avoided)
        episode_id = joined.admitted.head.episode_id
        reply.add_header("x-hone-episode", episode_id)
        return Order(
            call_id=call_id_of(dialect.id_prefix, episode_id, secrets.token_hex(16)),
            admitted=joined.admitted,
            route=route,
            dialect=dialect,
            asked=asked,
            key_id=arrival.caller.key_id,
            body_digest=arrival.body_digest,
            retry=arrival.retry,
            shape=shape,
            meter=arrival.meter,
            sampling=sampling_for(route, asked, joined.admitted.run),
            lineage=joined.lineage,
            trail=joined.trail,
            traceparent=None if self._services.tracing is None else headers.sole("traceparent"),
        )

    async def _count(self, body: bytes) -> bytes:
        """How many tokens a conversation is."""
        asked = self._messages.parse_to_count(body, self._limits)
        route = find_route(asked.model, self._policies, self._served)
        return msgspec.json.encode({"input_tokens": await self._counter.count(asked, route)})

    def _models(self, name: str | None) -> bytes:
        """The policies with their aliases and the models of upstreams, as OpenAI lists models; patterns name none."""
        owners = {name: "hone" for policy in self._policies for name in (policy.name, *policy.aliases)}
        owners |= {name: each.upstream for each in self._served for name in each.models if JOKER not in name}
        if name is None:
            cards = [_model_card(name, owner) for name, owner in owners.items()]
            return msgspec.json.encode({"object": "list", "data": cards})
        if name not in owners and not self._served:
            told = f"There is no model {name!r}; there are: {', '.join(sorted(owners))}."
            raise NotFound(told, param="model", code="model_not_found")
        route = find_route(name, self._policies, self._served)
        return msgspec.json.encode(_model_card(name, route.upstream if isinstance(route, UpstreamRoute) else "hone"))


def _model_card(name: str, owner: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": owner}


def _require_method(wanted: str, method: str, reply: Reply) -> None:
    if method != wanted:
        reply.add_header("allow", wanted)
        raise WrongMethod(f"Write {wanted} instead of {method}.")


def _shape(given: str | None, arrival: Arrival) -> Shape:
    """The role that the agent names, or what the call looks like."""
    if given is None:
        return shape_of(arrival.asked, arrival.conversation)
    if not _ROLE.fullmatch(given):
        raise BadRequest(f"X-Hone-Role does not match {ID_PATTERN}.", param="X-Hone-Role")
    return Shape(role=given)


async def _read(receive: Receive, declared: str | None, limit: int) -> bytes:
    """The whole body, given up as soon as it is known to be too large."""
    if declared is not None and declared.isdigit() and int(declared) > limit:
        raise TooLarge(f"The body has {declared} bytes; {limit} are allowed (HONE_MAX_BODY_BYTES).")
    parts: list[bytes] = []
    size = 0
    while True:
        message: dict[str, Any] = dict(await receive())
        if message["type"] == "http.disconnect":
            raise Hangup
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise TooLarge(f"The body has more than {limit} bytes (HONE_MAX_BODY_BYTES).")
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)
