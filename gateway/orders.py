"""A call as it was ordered: all that is known before anything is written, and what its end means for the record."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.admission import Admitted
from gateway.arrivals import Trail
from gateway.dialects.base import Asked, Dialect, Target
from gateway.meters import Meter
from gateway.replies import ClientGone
from gateway.roles import Shape, settled_role
from gateway.routing import PolicyRoute, Route, sampling_of, uses_policy_sampling
from gateway.upstream import EngineRefused
from tracker.errors import HoneError
from tracker.types import CallState, Reason, RunSettings, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A call that was admitted: all that is known before anything is written."""

    call_id: str
    admitted: Admitted
    route: Route
    dialect: Dialect
    asked: Asked
    key_id: str
    body_digest: str
    shape: Shape
    """What it is for, seen by itself."""
    meter: Meter
    """What it takes of its key."""
    sampling: Sampling
    """The settings the engine is sent."""
    retry: int = 0
    lineage: str | None = None
    """The role of the call whose answer it goes on from."""
    trail: Trail | None = None
    """Where it leaves notes, if it named no episode."""
    traceparent: str | None = None
    """The caller's span, where calls are traced."""

    def role_beside(self, mark: bytes) -> str:
        """The call's role in an episode whose main agent has this mark."""
        return settled_role(self.shape, self.lineage, mark)

    @property
    def episode_id(self) -> str:
        return self.admitted.head.episode_id

    @property
    def policy(self) -> str | None:
        """The policy's name; `None` for a model that is none."""
        return self.route.name if isinstance(self.route, PolicyRoute) else None

    def target(self, model: str) -> Target:
        """Whom the call is sent to, under the name that it has there."""
        is_ours = isinstance(self.route, PolicyRoute)
        overrides = is_ours and uses_policy_sampling(self.admitted.run)
        return Target(model=model, sampling=self.sampling, overrides=overrides, captures=is_ours)

    @property
    def request_id(self) -> str:
        """What a server is told as the request's id: the call's, without the dialect's prefix."""
        return self.call_id.removeprefix(self.dialect.id_prefix)


def sampling_for(route: Route, asked: Asked, run: RunSettings) -> Sampling:
    """The settings that a call is sampled with: of a model that is no policy the agent's own."""
    if not isinstance(route, PolicyRoute):
        return asked.sampling
    return sampling_of(run, route.sampling, asked.sampling, asked.given)


def verdict(failure: HoneError | ClientGone | None) -> tuple[CallState, Reason | None, str]:
    """How the call ended, why none of it is trained, and the words for people."""
    if failure is None:
        return CallState.COMPLETED, None, ""
    if isinstance(failure, ClientGone):
        return CallState.ABORTED, Reason.CLIENT_GONE, "The client closed its connection before the answer was released."
    overflow = isinstance(failure, EngineRefused) and failure.is_context_overflow
    return CallState.FAILED, Reason.CONTEXT_LIMIT if overflow else Reason.UPSTREAM_FAILED, failure.message
