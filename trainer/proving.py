"""From a batch that was taken to rows that are proven, with the manifest that says so.

The rule: nothing is trained that was not compared with what was sealed. The archives of the batch's groups are opened,
their chains, calls, rows and adapters are checked, and the manifest is stored before the step; a batch that is trained
again after a crash must have the manifest it had before. What is refused is raised as `CorruptRecord`, with its place;
that its groups are skipped then is left to `feed.py`, what the model is really fed to the step itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracker.adapters import read_adapters
from tracker.errors import CorruptRecord
from tracker.evidence import Adapter, Archived, check_episode, check_rows
from tracker.ledger import SqlLedger
from tracker.manifests import NO_MANIFEST, coverage_of, decode_manifest, encode_manifest, first_change, manifest_of
from tracker.samples import Row
from tracker.types import Batch, Call, RunSettings
from trainer.taking import credited_rows


@dataclass(frozen=True, slots=True)
class Proven:
    """What a step may be taken on."""

    rows: tuple[Row, ...]
    advantages: tuple[float, ...]
    manifest: bytes


async def sealed_calls(ledger: SqlLedger, episode_id: str) -> tuple[Call, ...]:
    """The calls of an archived episode, none where there is no archive. Raises `CorruptRecord` unless they are those
    that were sealed."""
    archived = await ledger.archived(episode_id)
    if archived is None:
        return ()
    check_episode(archived)
    return archived.calls


async def prove(ledger: SqlLedger, batch: Batch, run: RunSettings, adapters_dir: Path) -> Proven:
    """The rows of a batch, checked, and its manifest, stored."""
    stored = await ledger.archived_of_groups(batch.group_ids)
    archived = {timeline.episode_id: timeline.opened() for timeline in stored}
    adapters = read_adapters(await ledger.list_versions(batch.policy), adapters_dir, versions_in(archived, batch))
    proven = checked(batch, run, archived, adapters)
    if batch.manifest == NO_MANIFEST:
        await ledger.put_manifest(batch, proven.manifest)
    return proven


def checked(
    batch: Batch, run: RunSettings, archived: Mapping[str, Archived], adapters: Mapping[int, Adapter]
) -> Proven:
    """The rows and the manifest of a batch; raises `CorruptRecord` unless everything holds."""
    credited = dict.fromkeys(item.episode_id for item in batch.credit)
    for name in credited:
        if name in archived:
            check_episode(archived[name])
    calls = {name: archived[name].calls if name in archived else () for name in credited}
    rows, advantages = credited_rows(calls, run, batch.policy, batch.credit)
    found = check_rows(rows, {name: archived[name] for name in credited}, batch.policy, adapters)
    trained = {(row.episode_id, row.call_id, row.choice) for row in rows}
    coverage = coverage_of([(episode, run) for episode in archived.values()], batch.policy, trained)
    made = manifest_of(batch, run.loss, zip(rows, advantages, strict=True), archived, found, coverage)
    if batch.manifest == NO_MANIFEST:
        return Proven(rows, advantages, encode_manifest(made))
    change = first_change(decode_manifest(batch.manifest), made)
    if change:
        raise CorruptRecord(f"the batch is not the one that was stored when it was taken: {change}")
    return Proven(rows, advantages, batch.manifest)


def versions_in(archived: Mapping[str, Archived], batch: Batch) -> Sequence[int]:
    """The versions that the policy's calls in these episodes were sampled with."""
    return sorted({call.version for one in archived.values() for call in one.calls if call.policy == batch.policy})
