"""Where one call goes, and where it goes next if its engine is lost before any of the answer came.

An engine that cannot be reached, or broke off without a word, has given the agent nothing: another one is asked, and
the call has a delay instead of an error. One that broke off is replaced once only, for a request that kills engines
must not be handed through all of them. An engine that was restarted between two looks knows no adapters: it is brought
up to date and asked again. What has begun is never asked for twice.
"""

from __future__ import annotations

import logging
from typing import Final, Self

from gateway.dependencies import Services
from gateway.engines import Placement
from gateway.orders import Order
from gateway.routing import UpstreamRoute
from gateway.upstream import EngineGone, EngineRefused
from tracker.errors import UpstreamFailed
from tracker.store import Begun

LOG: Final = logging.getLogger("hone.placing")
NOT_FOUND: Final = 404


class Placing:
    """The places of one call. Used as a context: from its first choice on, the call counts where it is expected."""

    def __init__(self, services: Services, order: Order) -> None:
        self._services = services
        self._order = order
        self._given_up: set[str] = set()
        self._was_broken_off = False
        self._was_reminded = False
        self._expected: str | None = None
        self._is_expected = False
        """Whether it is counted as on its way."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._arrive()

    def candidates(self) -> tuple[str, ...] | None:
        """Engines that the call may go to, best first; None for a model that is no policy."""
        policy = self._order.policy
        if policy is None:
            return None
        urls = self._services.engines.candidates(policy)
        self.expect(urls[0])
        return urls

    def expect(self, url: str) -> None:
        """From now on the call is on its way to this engine."""
        if self._is_expected and url == self._expected:
            return
        self._arrive()
        self._services.engines.expect(url)
        self._expected, self._is_expected = url, True

    def _arrive(self) -> None:
        """It is not on its way any more."""
        if self._is_expected and self._expected is not None:
            self._services.engines.expect(self._expected, -1)
        self._is_expected = False

    def begin(self, placement: Placement) -> None:
        """Count the call where it is, and nowhere else, until `end`."""
        self._services.engines.begin(placement)
        self._arrive()

    def end(self, placement: Placement) -> None:
        self._services.engines.end(placement)

    async def place(self, begun: Begun) -> Placement:
        """The engine of the call's episode while it is fit, else another; or the upstream of a model that is no
        policy."""
        route = self._order.route
        if isinstance(route, UpstreamRoute):
            return Placement(engine=route.url, model=route.name, digest="")
        serving = await self._services.versions.serving(route.name, begun.version)
        preferred = begun.engine or self._expected
        return await self._services.engines.place(serving, preferred, without=self._given_up)

    async def moves_on(self, placement: Placement, error: UpstreamFailed) -> bool:
        """Whether the call, of whose answer nothing came, is to be placed once more."""
        policy = self._order.policy
        if policy is None:
            return False
        if isinstance(error, EngineRefused):
            return await self._was_forgotten(placement, error)
        if not isinstance(error, EngineGone) or (error.was_reached and self._was_broken_off):
            return False
        engines = self._services.engines
        if not error.was_reached:
            engines.lost(placement.engine)
        self._was_broken_off = error.was_reached
        self._given_up.add(placement.engine)
        if not engines.has_other(policy, self._given_up):
            return False
        LOG.warning("call %s leaves %s: %s", self._order.call_id, placement.engine, error.message)
        return True

    async def _was_forgotten(self, placement: Placement, error: EngineRefused) -> bool:
        if error.status != NOT_FOUND or self._was_reminded:
            return False
        self._was_reminded = True
        return await self._services.engines.has_forgotten(placement)
