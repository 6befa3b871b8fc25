"""Looks for what is amiss with rewards and answers, in the background, and shows it: in SQL for readers, as gauges.

What an alarm is stands in `tracker/drift.py`; here is when it is looked for. Every gateway may look: they find the
same.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Final

from gateway.dependencies import Services
from tracker.drift import WINDOW, Alarm, AlarmKind, History, alarms

LOG: Final = logging.getLogger("hone.alarming")
ALARMS_S: Final = 30.0
"""Between two looks."""


async def look_for_alarms(services: Services) -> None:
    """One look at the newest episodes of every run."""
    histories = await services.ledger.histories(WINDOW)
    found = await asyncio.to_thread(_all_alarms, histories)
    before = {name_of(alarm) for alarm in await services.ledger.list_alarms()}
    await services.ledger.put_alarms(found, services.clock.now_ms())
    for alarm in found:
        if name_of(alarm) not in before:
            LOG.warning("run %s, policy %s: %s: %s", alarm.run, alarm.policy, alarm.kind, alarm.detail)
    counts = Counter((alarm.policy, alarm.kind) for alarm in found)
    for policy in services.settings.stores.policies:
        for kind in AlarmKind:
            services.metrics.alarms.of(policy.name, kind).set(counts[policy.name, kind])


def name_of(alarm: Alarm) -> tuple[str, str, str, AlarmKind]:
    """What an alarm is the same by, from one look to the next."""
    return alarm.tenant, alarm.run, alarm.policy, alarm.kind


def _all_alarms(histories: list[History]) -> list[Alarm]:
    return [alarm for history in histories for alarm in alarms(history)]
