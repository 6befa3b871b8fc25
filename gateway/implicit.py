"""Implicit episodes: the one that a call belongs to which names none.

In this order: the session that a configured field names; the call that a Responses request continues by its id; the
attempt that a retry repeats; the answer of ours that its conversation goes on from; else an episode of its own. One
step of the episode store decides, so that parallel calls and other gateways agree. An episode that has ended is never
answered with 410 here, since the agent did not name it: another one opens, unless so much waits for the trainer that
it would be too stale when it is trained: then the call is refused. Its task is the one in the path or the header, else
the digest of how the conversation begins.
"""

from __future__ import annotations

import contextlib
import secrets

import msgspec

from gateway.admission import BEST_EFFORT, Admission, Admitted
from gateway.arrivals import Arrival, Joined, Trail
from gateway.auth import Caller
from gateway.conversation import task_of, thread_of
from gateway.dependencies import Services
from gateway.identity import EPISODE_PREFIX, episode_id_of, scope_of, session_of, task_named
from gateway.requests import RequestHeaders
from tracker.claims import Claim
from tracker.errors import Gone, NotFound, Unavailable
from tracker.types import DEFAULT, EpisodeHead


class ImplicitEpisodes:
    """Finds or opens the episode of a call that names none."""

    def __init__(self, services: Services, admission: Admission) -> None:
        self._services = services
        self._admission = admission
        self._fields = services.settings.episode_from
        self._reads_body = any(field.startswith("body:") for field in self._fields)

    async def join(self, arrival: Arrival, headers: RequestHeaders, avoided: str) -> Joined:
        """The episode of a call; `avoided` is one that it was given before and that takes no calls any more."""
        caller = arrival.caller
        task = task_named(arrival.path.task, headers.one("x-hone-task"))
        thread = thread_of(arrival.conversation)
        session = self._session(arrival, headers)
        trail = Trail(scope=scope_of(caller.tenant, caller.key_id, task), attempt=secrets.token_hex(16), end=thread.end)
        if session is None:
            continued = await self._continued(arrival, task, avoided)
            if continued is not None:
                return Joined(admitted=continued, trail=trail)
        claim = Claim(
            scope=trail.scope,
            proposed=EPISODE_PREFIX + secrets.token_hex(16),
            attempt=trail.attempt,
            body_digest=arrival.body_digest,
            now_ms=self._services.clock.now_ms(),
            retry=arrival.retry,
            session=session,
            traces=thread.traces,
            avoided=avoided,
        )
        return await self._claim(claim, arrival, trail, task)

    def _session(self, arrival: Arrival, headers: RequestHeaders) -> bytes | None:
        if not self._fields:
            return None
        body: object = msgspec.json.decode(arrival.asked.request) if self._reads_body else None
        return session_of(self._fields, headers.one, body)

    async def _continued(self, arrival: Arrival, task: str | None, avoided: str) -> Admitted | None:
        """The episode of the call that `previous_response_id` names."""
        previous = arrival.asked.previous
        episode_id = None if previous is None else episode_id_of(previous)
        if episode_id in (None, avoided):
            return None
        try:
            admitted = await self._admission.admit(arrival.caller.tenant, str(episode_id))
        except (NotFound, Gone):
            return None
        return admitted if task in (None, admitted.head.task) else None

    async def _claim(self, claim: Claim, arrival: Arrival, trail: Trail, task: str | None) -> Joined:
        tenant = arrival.caller.tenant
        task = task or task_of(arrival.conversation)
        try:
            claimed = await self._services.store.claim(claim)
        except Unavailable:
            run = await self._services.ledger.get_run(tenant, DEFAULT)
            if run.record != BEST_EFFORT:
                raise
            with contextlib.suppress(Unavailable):
                await self._open(arrival.caller, claim.proposed, task)
            return Joined(admitted=await self._admission.admit(tenant, claim.proposed))
        if not claimed.is_open:
            return Joined(admitted=await self._open(arrival.caller, claimed.episode_id, task), trail=trail)
        try:
            admitted = await self._admission.admit(tenant, claimed.episode_id)
        except Gone:  # its end is in SQL already, and the episode store is about to hear of it
            if claim.avoided:
                return Joined(admitted=await self._open(arrival.caller, claim.proposed, task), trail=trail)
            again = msgspec.structs.replace(claim, avoided=claimed.episode_id)
            return await self._claim(again, arrival, trail, task)
        return Joined(admitted=admitted, lineage=claimed.role, trail=trail)

    async def _open(self, caller: Caller, episode_id: str, task: str) -> Admitted:
        """Create it in SQL, then in the episode store; whoever else was given this id may do the same at once."""
        head = EpisodeHead(
            episode_id=episode_id,
            tenant=caller.tenant,
            run=DEFAULT,
            task=task,
            created_ms=self._services.clock.now_ms(),
            implicit=True,
            key_id=caller.key_id,
        )
        stored, _ = await self._services.ledger.create_episode(head, None, "", bounded=True)
        admitted = Admitted(head=stored, run=await self._services.runs.get(caller.tenant, stored.run))
        await self._services.store.open(stored, int(admitted.run.idle_s * 1000))
        self._admission.keep(admitted)
        return admitted
