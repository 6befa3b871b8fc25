"""What a request needs, in one frozen place: built once in the lifespan, handed to the door and to every route."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.auth import KeyRing
from gateway.background import Duties
from gateway.engines import EnginePool
from gateway.hotswap import HotSwap
from gateway.lookups import RunCache, VersionBook
from gateway.meters import Meters
from gateway.metrics import Metrics
from gateway.refused_acts import RefusedActs
from gateway.releasing import Releasing
from gateway.settings import GatewaySettings
from gateway.shadows import Shadows
from gateway.tracing import Tracing
from tracker.clock import Clock
from tracker.store import Batches, EpisodeStore, Ledger


@dataclass(frozen=True, slots=True)
class Services:
    """Everything behind the gateway's doors."""

    settings: GatewaySettings
    store: EpisodeStore
    ledger: Ledger
    batches: Batches
    keys: KeyRing
    meters: Meters
    engines: EnginePool
    runs: RunCache
    versions: VersionBook
    swap: HotSwap
    releasing: Releasing
    shadows: Shadows
    clock: Clock
    worker_id: str
    """Names this process in intents and heartbeats; never used again."""
    duties: Duties = field(default_factory=Duties)
    """What runs in the background; none where the services are used apart from the app."""
    metrics: Metrics = field(default_factory=Metrics)
    refused_acts: RefusedActs = field(default_factory=RefusedActs)
    tracing: Tracing | None = None
    """`None` unless somebody wants traces."""
