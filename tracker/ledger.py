"""The SQL ledger as one object: it implements `Ledger` for the gateway and `Batches` for the trainer.

Each part keeps the statements about its own tables; all of them run their work through `Database`, one transaction a
method. Nothing is cached here: what is read is what is committed.
"""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncEngine

from tracker.alarm_rows import Alarms
from tracker.audit import AuditLog
from tracker.batch_reading import BatchReading
from tracker.batches import BatchTaking
from tracker.clock import Clock
from tracker.episodes import Episodes
from tracker.erasure import Erasure
from tracker.finding import Finding
from tracker.groups import Groups
from tracker.in_flight import InFlightGroups
from tracker.keys import Keys
from tracker.lineage import Lineage
from tracker.offers import Offers
from tracker.outcome_reading import OutcomeReading
from tracker.overview_reading import Overviews
from tracker.registry import Registry
from tracker.releases import Releases
from tracker.retention import Retaining
from tracker.rewards import Rewards
from tracker.schema import Schema
from tracker.sql import open_engine, upgrade
from tracker.training_reading import TrainingReading
from tracker.transfers import Transfers
from tracker.vault import TenantKeys, Vault
from tracker.versions import Versions


class SqlLedger(
    Registry,
    Keys,
    AuditLog,
    Episodes,
    Finding,
    Groups,
    Rewards,
    Versions,
    Releases,
    Alarms,
    Offers,
    InFlightGroups,
    BatchTaking,
    BatchReading,
    Lineage,
    Erasure,
    TenantKeys,
    Retaining,
    Transfers,
    Overviews,
    OutcomeReading,
    TrainingReading,
    Schema,
):
    """SQL: what must outlive everything."""

    def __init__(self, engine: AsyncEngine, clock: Clock, vault: Vault | None = None) -> None:
        super().__init__(engine)
        self._clock = clock
        self._vault = vault or Vault()

    @classmethod
    async def connect(cls, database_url: str, clock: Clock, vault: Vault | None = None) -> SqlLedger:
        """The ledger of this database, its schema brought up to date."""
        await upgrade(database_url)
        return cls(open_engine(database_url), clock, vault)
