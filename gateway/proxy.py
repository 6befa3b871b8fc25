"""The life of a call: intent, engine, events on to the agent, record, release.

Nothing leaves for an engine before its intent is written. Events go on as they come; from the last choice's finish
event on they are held until `end_call` has appended the call, and only then released. A client that leaves before the
release has an aborted call, after it a delivered one. A failure of the engine is a real status before the first byte
and one error event after it; the call is kept either way. Streams and whole answers take the same path.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from time import perf_counter
from typing import Final

from gateway.admission import BEST_EFFORT, Admission, ended
from gateway.arrivals import note_of
from gateway.bills import Bills
from gateway.capture import MALFORMED, Capture, EndTokens
from gateway.deadlines import Deadlines
from gateway.dependencies import Services
from gateway.dialects.openai_form import PassingWriter
from gateway.engines import Placement
from gateway.orders import Order, verdict
from gateway.pieces import read_piece, read_whole
from gateway.placing import Placing
from gateway.replies import ClientGone, ClientWatch, Reply
from gateway.routing import UpstreamRoute
from gateway.sources import Source, Sources
from gateway.sse import SseEvent
from gateway.upstream import engine_object, error_in
from gateway.watching import Watched
from tracker.errors import Gone, HoneError, NotFound, SettingsError, Unavailable, UpstreamFailed
from tracker.redaction import Redactors
from tracker.store import Begun
from tracker.types import Call, CallState, Event, Intent, Reason, Usage

LOG: Final = logging.getLogger("hone.proxy")
RECORD_PAUSE_S: Final = 0.05
"""Between two tries to record a call while the store is away."""
ENDLESS: Final = "The engine ended its answer without a finish reason."


class Proxy:
    """What all calls share."""

    def __init__(self, services: Services, sources: Sources, admission: Admission, deadlines: Deadlines) -> None:
        self.services = services
        self.deadlines = deadlines
        self.bills = Bills(services.settings.upstreams)
        self.sources = sources
        self.admission = admission
        self.redactors = Redactors(services.settings.stores.redactions)
        self.ends: dict[str, EndTokens] = {}
        """policy -> its end tokens, as far as they were seen."""
        self.last_versions: dict[str, int] = {}
        """policy -> the version of its newest call: what a best-effort call gets while the store is away."""

    async def serve(self, order: Order, reply: Reply, client: ClientWatch) -> Call | None:
        """Serve one call to its end; the call, if its answer was recorded and released."""
        with Watched(self.services, order) as watched, Placing(self.services, order) as placing:
            exchange = Exchange(self, order, reply, client, placing, watched)
            await exchange.begin()
            return await exchange.run()


class Exchange:
    """One call and its answer."""

    def __init__(
        self, proxy: Proxy, order: Order, reply: Reply, client: ClientWatch, placing: Placing, watched: Watched
    ) -> None:
        self._proxy = proxy
        self._watched = watched
        self._metrics = proxy.services.metrics
        self._services = proxy.services
        self._order = order
        self._reply = reply
        self._client = client
        self._dialect = order.dialect
        self._capture = Capture(order.asked, takes_tokens=order.policy is not None)
        self._writer = order.dialect.writer(order.asked, order.call_id)
        reply.form = self._writer.error_form or reply.form
        writer = self._writer
        self._passing = writer if isinstance(writer, PassingWriter) and self._capture.takes_pieces else None
        """Writes what need not be read whole, where nothing of it is for the agent but words."""
        self._streams = order.asked.streams
        self._ends = proxy.ends.setdefault(order.policy or "", EndTokens())
        self._held: list[bytes] = []
        self._is_marked = False
        """Whether the engine's end mark has come."""
        self._started_ms = self._services.clock.now_ms()
        self._begun = Begun(index=0, version=proxy.last_versions.get(order.policy or "", 0))
        self._role = order.shape.role
        self._is_recorded = True
        """False for a best-effort call whose intent could not be written."""
        self._usage: Usage | None = None
        self._placing = placing
        self._source: Source | None = None
        self._has_begun = False
        """Whether any of the answer came."""
        self._engine = ""
        self._digest = ""

    async def begin(self) -> None:
        """Write the intent; raises what refuses the call before it leaves."""
        order, settings = self._order, self._services.settings
        lifetime_s = settings.call_timeout_s + settings.record_timeout_s
        intent = Intent(
            call_id=order.call_id,
            episode_id=order.episode_id,
            worker=self._services.worker_id,
            deadline_ms=self._started_ms + int(lifetime_s * 1000),
            started_ms=self._started_ms,
            policy=order.policy,
            model=order.asked.model,
            dialect=self._dialect.name,
            role=order.shape.role,
            key_id=order.key_id,
            body_digest=order.body_digest,
            retry=order.retry,
        )
        engines = self._placing.candidates()
        asked_s = perf_counter()
        try:
            self._begun = await self._services.store.begin_call(
                intent, order.admitted.run.pin, engines, order.shape.mark
            )
        except Unavailable:
            if order.admitted.run.record != BEST_EFFORT:
                raise
            self._is_recorded = False
        except NotFound:
            raise await self._proxy.admission.why_not(order.admitted.head.tenant, order.episode_id) from None
        except Gone:
            raise ended(order.episode_id) from None
        self._metrics.began_in(perf_counter() - asked_s)
        self._proxy.last_versions[order.policy or ""] = self._begun.version
        self._engine = self._begun.engine or ""
        if self._engine:
            self._placing.expect(self._engine)
        self._role = order.role_beside(self._begun.mark)

    async def run(self) -> Call | None:
        """Relay the answer, then record the call, then release what was held."""
        self._reply.add_header("x-hone-call", self._order.call_id)
        self._reply.add_header("x-hone-version", str(self._begun.version))
        is_settled = False
        try:
            await self._note_repinned()
            failure = await self._relay()
            if failure is None and self._client.is_gone:
                failure = ClientGone()
            if isinstance(self._order.route, UpstreamRoute):
                self._usage = await self._proxy.bills.usage(self._order.route, self._order.asked, self._capture)
            call = self._call(failure)
            kept = self._kept(call)
            is_settled = True
            return kept if await self._settle(call, kept, failure) else None
        finally:
            if not is_settled and self._is_recorded:  # cut short by a stop or a fault of ours: shown as lost at once
                now_ms = self._services.clock.now_ms()
                await self._services.store.abandon_call(self._order.episode_id, self._order.call_id, now_ms)

    async def _note_repinned(self) -> None:
        """Have the episode say that it got another version than it was pinned to."""
        if self._begun.repinned_from is not None:
            detail = f"{self._order.policy}: {self._begun.repinned_from} -> {self._begun.version}"
            event = Event(at_ms=self._started_ms, kind="repinned", detail=detail)
            await self._services.store.add_event(self._order.episode_id, event)

    # the engine

    async def _relay(self) -> HoneError | ClientGone | None:
        """Pass the answer on up to the held event; what went wrong, if anything did."""
        settings = self._services.settings
        try:
            with self._client.guard(), self._proxy.deadlines.within(settings.call_timeout_s):
                await self._ask()
        except ClientGone as gone:
            return gone
        except TimeoutError:
            return UpstreamFailed(f"The engine did not finish within {settings.call_timeout_s:g} s.")
        except SettingsError as error:
            return UpstreamFailed(error.message, status=503)
        except HoneError as error:
            return error
        return None

    async def _ask(self) -> None:
        """Have the call answered; by another engine if the first is lost before any of its answer came."""
        self._source = source = self._proxy.sources.of(self._order, self._begun.index)
        while True:
            placement = await self._placing.place(self._begun)
            self._engine, self._digest = placement.engine, placement.digest
            try:
                return await self._exchange(source, placement)
            except UpstreamFailed as error:
                if self._has_begun or not await self._placing.moves_on(placement, error):
                    raise

    async def _exchange(self, source: Source, placement: Placement) -> None:
        self._placing.begin(placement)
        try:
            async with source.ask(self._order, placement) as answer, aclosing(answer.batches()) as batches:
                async for events in batches:
                    self._has_begun = True
                    if len(events) > 1:
                        await self._forward(events)
                    elif data := self._take(events[0]):
                        await self._reply.events(data)
        finally:
            self._placing.end(placement)
        if not self._capture.is_finished:
            raise UpstreamFailed(ENDLESS)
        if self._streams and not self._is_marked:
            self._held.append(self._writer.done(b""))

    async def _forward(self, events: list[SseEvent]) -> None:
        """Pass events on together; those before one that breaks the answer too."""
        ready: list[bytes] = []
        try:
            for event in events:
                ready.append(self._take(event))
        finally:
            if data := b"".join(ready):
                await self._reply.events(data)

    def _take(self, event: SseEvent) -> bytes:
        """What of an event goes on now; from the last finish reason on it is held instead, a whole answer always."""
        if self._passing is not None and self._streams and event.data is not None:
            piece = read_piece(event.data)
            if piece is not None and not self._capture.is_finished:
                self._capture.take_piece(piece)
                return self._passing.piece(piece)
        passed = self._pass(event)
        if self._capture.is_finished or not self._streams:
            self._held.append(passed)
            return b""
        return passed

    def _pass(self, event: SseEvent) -> bytes:
        """An event as the agent gets it: in its dialect, without what it did not ask for."""
        if event.data is None:
            return event.raw
        if event.is_done:
            if not self._capture.is_finished:
                raise UpstreamFailed(ENDLESS)
            self._is_marked = True
            return self._writer.done(event.raw)
        streams = self._streams
        whole = None if streams or self._passing is None else read_whole(event.data)
        said = engine_object(event.data, MALFORMED) if whole is None else whole
        if whole is None and (error := error_in(said)) is not None:
            raise error
        if not self._capture.feed(said):
            return b""
        return self._writer.event(said) if streams else self._writer.whole(said)

    # the record

    def _call(self, failure: HoneError | ClientGone | None) -> Call:
        """The call as it stands now."""
        order, capture = self._order, self._capture
        sampling = order.sampling
        state, reason, detail = verdict(failure)
        if reason is None and order.asked.has_media:
            reason = Reason.IMAGES
        return Call(
            call_id=order.call_id,
            episode_id=order.episode_id,
            index=self._begun.index,
            dialect=self._dialect.name,
            policy=order.policy,
            model=order.asked.model,
            version=self._begun.version,
            adapter_digest=self._digest,
            role=self._role,
            state=state,
            reason=reason,
            detail=detail or capture.detail(),
            prompt_ids=capture.prompt_ids,
            choices=capture.choices(sampling.max_tokens, self._ends),
            messages=order.asked.messages,
            request=order.asked.request,
            sampling=sampling,
            engine=self._engine,
            started_ms=self._started_ms,
            ended_ms=self._services.clock.now_ms(),
            key_id=order.key_id,
            body_digest=order.body_digest,
            retry=order.retry,
            usage_completion_tokens=capture.usage_completion_tokens,
            usage=self._usage,
            prompting=None if self._source is None else self._source.prompting,
        )

    def _kept(self, call: Call) -> Call:
        """The call as it may be stored; the agent gets its answer as it came."""
        redactor = self._proxy.redactors.of(self._order.admitted.run.redactions)
        return call if redactor is None else redactor.redacted(call)

    async def _settle(self, call: Call, kept: Call, failure: HoneError | ClientGone | None) -> bool:
        """Record, then tell the agent how it went; whether there is a record of an answer that was released."""
        asked_s, now = perf_counter(), self._metrics.now
        now.num_held += 1
        try:
            refused = await self._record(call, kept)
        finally:
            now.num_held -= 1
            self._watched.ended(call)
        if refused is None:
            self._metrics.recorded_in(perf_counter() - asked_s)
        else:
            self._watched.withheld(refused)
        await self._order.meter.end(call)
        if isinstance(failure, ClientGone):
            return False
        if failure is not None or refused is not None:
            trouble = failure or refused or UpstreamFailed(ENDLESS)
            self._metrics.refused(trouble.status, trouble.code)
            await self._reply.fail(trouble)
            return False
        held = b"".join(self._held)
        if self._streams:
            await self._reply.events(held, last=True)
        else:
            await self._reply.whole(held)
        return self._is_recorded

    async def _record(self, call: Call, kept: Call) -> HoneError | None:
        """Append the call, as it may be stored, until the store takes it; why its answer may not be released, if so."""
        if not self._is_recorded:
            await self._note_unrecorded(call)
            return None
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._services.settings.record_timeout_s
        while True:
            try:
                with self._proxy.deadlines.within(until_s - loop.time()):
                    if await self._services.store.end_call(kept, note_of(self._order.trail, call)):
                        self._proxy.sources.note(kept)
                        return None
                return Unavailable("The call was given up before its answer came: it cannot be recorded any more.")
            except (Unavailable, TimeoutError) as error:
                if loop.time() + RECORD_PAUSE_S >= until_s:
                    return await self._give_up(call, error)
            await asyncio.sleep(RECORD_PAUSE_S)
            if self._client.is_gone and call.state is CallState.COMPLETED:
                call = self._call(ClientGone())
                kept = self._kept(call)

    async def _give_up(self, call: Call, error: Exception) -> HoneError | None:
        LOG.error("call %s could not be recorded: %r", call.call_id, error)
        if self._order.admitted.run.record == BEST_EFFORT:
            await self._note_unrecorded(call)
            return None
        return Unavailable("The answer could not be recorded, so it is not released.")

    async def _note_unrecorded(self, call: Call) -> None:
        """Mark the episode: what was served without a record can never be trained as whole."""
        self._metrics.unrecorded.of("served").inc()
        event = Event(at_ms=call.ended_ms, kind=Reason.UNRECORDED, detail=call.call_id)
        await self._services.ledger.add_event(call.episode_id, event)
