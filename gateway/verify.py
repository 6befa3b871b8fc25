"""What `hone verify` and its button check, and how it is told: stored batches, from SQL and adapters alone.

Every batch that is asked for is read at one moment and checked by `tracker/verification.py`; what only several batches
together show is looked for over all of their policy. Nothing is changed, whatever is found, and a gateway or a trainer
may run meanwhile. Where the digest of a manifest was written down elsewhere, in metrics, versions and checkpoints, it
has to be the same there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.desk import open_ledger
from tracker.adapters import read_adapters
from tracker.errors import NotFound
from tracker.evidence import Fault
from tracker.manifests import versions_named
from tracker.settings import StoreSettings
from tracker.shares import Shares, total
from tracker.store import Batches, Ledger
from tracker.types import Batch, Record, Version
from tracker.verification import DROPPED, Across, Finding, Stored, verify

LISTED = 200
"""Steps of a policy that are listed at once, without their manifests."""
AT_ONCE = 8
"""Manifests that are held at once."""
REPORTS = "step-*/report.json"
"""Where a trainer's checkpoint tells what its step was."""


class Asked(Record, frozen=True):
    """Which batches."""

    batch_ids: tuple[str, ...] = ()
    run: str | None = None
    policy: str | None = None
    tenant: str = "default"


class Answer(Record, frozen=True):
    """What was found, batch by batch, oldest first."""

    findings: tuple[Finding, ...]
    skipped_groups: dict[str, int] | None = None
    """reason -> groups of the run that were not trained; `None` unless a run was asked for."""

    @property
    def is_ok(self) -> bool:
        return not any(finding.faults for finding in self.findings)

    def shares(self) -> Shares:
        """Over every batch that was checked."""
        return total(finding.shares for finding in self.findings if finding.is_trained_on)

    def view(self) -> dict[str, Any]:
        """For programs."""
        summary = self.shares().view()
        if self.skipped_groups is not None:
            summary["skipped_groups"] = self.skipped_groups
        return {"ok": self.is_ok, "batches": [_view(finding) for finding in self.findings], "summary": summary}

    def lines(self) -> Iterator[str]:
        """For people."""
        yield from map(_line, self.findings)
        if not self.findings:
            yield "There is no batch yet."
        elif len(self.findings) > 1 or self.skipped_groups is not None:
            yield _summary_line(self.shares(), self.skipped_groups or {})


async def verify_batches(stores: StoreSettings, asked: Asked) -> Answer:
    """Check the batches that are asked for. Raises `NotFound` for a batch, run or policy that is none."""
    async with open_ledger(stores) as ledger:
        return await verify_stored(ledger, ledger, stores, asked)


async def verify_stored(ledger: Ledger, stored: Batches, stores: StoreSettings, asked: Asked) -> Answer:
    """The same with a ledger that is open already. What takes long is done in threads: a gateway serves meanwhile."""
    batches = await _chosen(ledger, stored, asked)
    findings: list[Finding] = []
    for policy in dict.fromkeys(batch.policy for batch in batches):
        together = await _across(stored, policy, [batch for batch in batches if batch.policy == policy])
        versions = await ledger.list_versions(policy)
        reports = await asyncio.to_thread(_reports, stores.checkpoints_dir / policy)
        for batch in batches:
            if batch.policy == policy:
                evidence = await stored.stored_batch(batch.batch_id)
                finding = await asyncio.to_thread(_finding, evidence, versions, reports, stores.adapters_dir)
                findings.append(replace(finding, faults=finding.faults + together.get(batch.batch_id, ())))
    skipped = None if asked.run is None else await stored.skipped_groups((asked.tenant, asked.run))
    return Answer(findings=tuple(findings), skipped_groups=skipped)


async def _across(stored: Batches, policy: str, asked: Sequence[Batch]) -> dict[str, tuple[Fault, ...]]:
    """What these batches show together with all of their policy, whose manifests are read a few at a time."""
    batch_ids: list[str] = []
    cursor: str | None = None
    while True:
        page, cursor = await stored.steps(policy, LISTED, cursor)
        batch_ids += [step.batch_id for step in page]
        if cursor is None:
            break
    across = await asyncio.to_thread(Across, asked)
    batch_ids.reverse()
    for start in range(0, len(batch_ids), AT_ONCE):
        oldest_first = await stored.list_batches(batch_ids=batch_ids[start : start + AT_ONCE])
        await asyncio.to_thread(across.tell, oldest_first)
    return across.faults


async def _chosen(ledger: Ledger, stored: Batches, asked: Asked) -> list[Batch]:
    if asked.policy is not None and asked.policy not in {known.policy for known in await ledger.list_policies()}:
        raise NotFound(f"There is no policy {asked.policy!r} here.", param="policy")
    run = None
    if asked.run is not None:
        await ledger.get_run(asked.tenant, asked.run)
        run = asked.tenant, asked.run
    return await stored.list_batches(asked.policy, run, asked.batch_ids)


def _finding(
    stored: Stored, versions: Sequence[Version], reports: dict[str, dict[str, str]], adapters_dir: Path
) -> Finding:
    batch = stored.batch
    copies = {f"version {version.version}": digest for version, digest in _published(versions, batch.batch_id)}
    told = _told(batch.metrics)
    if told is not None and told.manifest:
        copies["its metrics"] = told.manifest
    return verify(
        replace(
            stored,
            adapters=read_adapters(versions, adapters_dir, versions_named(batch.manifest)),
            copies=copies | reports.get(batch.batch_id, {}),
        )
    )


class _Told(msgspec.Struct):
    """What metrics say of the step they are about."""

    batch_id: str = ""
    manifest: str | None = None


def _told(metrics: bytes) -> _Told | None:
    """`None` for metrics that are not a trainer's."""
    try:
        return msgspec.json.decode(metrics, type=_Told)
    except msgspec.DecodeError:
        return None


def _published(versions: Iterable[Version], batch_id: str) -> Iterator[tuple[Version, str]]:
    """The versions that a batch was published as, each with the digest its metrics name."""
    for version in versions:
        told = _told(version.metrics)
        if told is not None and told.batch_id == batch_id and told.manifest:
            yield version, told.manifest


def _reports(folder: Path) -> dict[str, dict[str, str]]:
    """batch_id -> checkpoint -> the digest that its report names."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(folder.glob(REPORTS)):
        told = _told(path.read_bytes())
        if told is not None and told.manifest:
            found.setdefault(told.batch_id, {})[f"checkpoint {path.parent.name}"] = told.manifest
    return found


def _view(finding: Finding) -> dict[str, Any]:
    batch = finding.batch
    return {
        "batch_id": batch.batch_id,
        "policy": batch.policy,
        "epoch": batch.epoch,
        "step": batch.step,
        "state": batch.state,
        "version": batch.version,
        "ok": not finding.faults,
        "faults": [{**msgspec.structs.asdict(fault), "line": fault.line()} for fault in finding.faults],
        "episodes": finding.num_episodes,
        "deleted_tokens": finding.num_deleted,
        "removed_tokens": finding.gone,
        **finding.shares.view(),
    }


def _line(finding: Finding) -> str:
    batch = finding.batch
    version = "" if batch.version is None else f", version {batch.version}"
    name = f"{batch.batch_id}  {batch.policy} step {batch.step}{version}"
    if not finding.is_trained_on:
        why = "dropped, not trained" if batch.state == DROPPED else "taken, not checked yet"
        return f"-       {name}: {why}"
    for first in finding.faults:
        more = f" (and {len(finding.faults) - 1} more)" if len(finding.faults) > 1 else ""
        return f"FAILED  {name}: {first.line()}{more}"
    gone = f"; {finding.num_deleted} tokens of deleted episodes cannot be checked" if finding.num_deleted else ""
    gone += "".join(f"; {number} tokens cannot be checked: {why}" for why, number in finding.gone.items())
    return f"ok      {name}: {_shares_line(finding.shares)} in {finding.num_episodes} episodes{gone}"


def _summary_line(shares: Shares, skipped: dict[str, int]) -> str:
    parts = [f"{shares.batches} batches: {_shares_line(shares)}"]
    if shares.coverage.excluded:
        parts.append(f"not trained: {_listed(shares.coverage.excluded, 'tokens')}")
    parts += [
        f"gap of version {version}: mean {gap.mean:.4f}, at most {gap.maximum:.4f} over {gap.num_tokens} tokens"
        for version, gap in sorted(shares.gaps.items())
    ]
    if skipped:
        parts.append(f"not trained at all: {_listed(skipped, 'groups')}")
    return "\n        ".join(parts)


def _shares_line(shares: Shares) -> str:
    view = shares.view()
    return (
        f"{shares.trained} of {shares.coverage.sampled_tokens} sampled tokens trained, "
        f"context-faithful {_percent(view['context_faithful'])}, sampled-faithful {_percent(view['sampled_faithful'])}"
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


def _listed(counts: dict[str, int], noun: str) -> str:
    return ", ".join(f"{number} {noun} {reason}" for reason, number in counts.items())
