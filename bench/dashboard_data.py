"""A ledger with a history: 20,000 episodes of a support desk, their groups and steps, and one episode of 300 calls.

What the dashboard is measured with (`bench/dashboard.py`) and pictured from. Everything is what the gateway and the
trainer would have stored: calls are sealed and encoded by the archive's own code, credit is that of the trainer's code,
manifests name receipts that hold. Only the way into SQL is short: a step's episodes in one transaction.

    python -m bench.dashboard_data FOLDER --episodes 20000
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Table, insert

from bench.dashboard_story import TASKS, Storyteller, Version
from gateway.encoding import load_encoding
from gateway.scripted.tokens import Tokens
from tracker import tables
from tracker.archive import Packed, packed
from tracker.clock import SystemClock
from tracker.credit import EpisodeOutcome, GroupCredit, group_credit
from tracker.evidence import Archived, Checked
from tracker.ledger import SqlLedger
from tracker.manifests import coverage_of, encode_manifest, manifest_of
from tracker.receipts import decode_receipts
from tracker.rounds import task_digest
from tracker.samples import rows_of
from tracker.store import EpisodeView
from tracker.types import (
    Batch,
    Call,
    Credit,
    EpisodeHead,
    EpisodeState,
    EpisodeStatus,
    GroupState,
    Record,
    RunSettings,
)

RUN: Final = RunSettings(
    run="support", group_size=8, groups_per_step=8, credit=Credit(), families={"refund": 2, "delivery": 2, "advice": 1}
)
HELD_OUT: Final = RunSettings(run="held-out", mode="eval")
POLICY: Final = "desk"
NUM_EPISODES: Final = 20_000
LONG: Final = (300, 100_000)
"""Calls, and ids in all."""
STEP_MS: Final = 420_000
LEASE_MS: Final = 86_400_000
ADVANCE: Final = 3.2
"""How far the agent has come at the last step, on the scale of a logistic curve."""
HEAD: Final = ("episode_id", "tenant", "run", "task", "group_id", "created_ms", "metadata", "implicit", "key_id")
WAITING: Final = (8, 5, 3)
"""Members that are scored in the groups which no trainer has taken yet."""


class Filled(Record, frozen=True):
    """Where to look."""

    long_episode: str
    episode: str
    """An ordinary one that was trained."""
    call: str
    """Its last call."""
    group: str
    batch: str
    num_versions: int


class _Episode(Record, frozen=True):
    head: EpisodeHead
    calls: tuple[Call, ...]
    reward: float | None
    place: int
    done: Packed
    """As SQL takes it."""

    @classmethod
    def of(
        cls, head: EpisodeHead, calls: tuple[Call, ...], reward: float | None, run: RunSettings, place: int = 0
    ) -> _Episode:
        cut = any(choice.truncated for call in calls for choice in call.choices)
        status = EpisodeStatus.FAILED if cut else EpisodeStatus.OK
        view = EpisodeView(head=head, state=EpisodeState.SEALED, status=status, calls=calls, intents=(), pins={})
        done = packed(view, run, head.created_ms + 30_000)
        return cls(head=head, calls=calls, reward=reward, place=place, done=done)


class _Group(Record, frozen=True):
    group_id: str
    task: str
    round: int
    members: tuple[_Episode, ...]
    created_ms: int


def fill(ledger: SqlLedger, num_episodes: int = NUM_EPISODES, long: tuple[int, int] = LONG, seed: int = 1) -> Filler:
    """What fills a ledger of no episodes: `await fill(ledger).all()`."""
    return Filler(ledger, num_episodes, long, seed)


class Filler:
    """Plays the steps of a policy, oldest first."""

    def __init__(self, ledger: SqlLedger, num_episodes: int, long: tuple[int, int], seed: int) -> None:
        self._ledger = ledger
        self._num_steps = max(1, num_episodes // (RUN.group_size * RUN.groups_per_step))
        self._long = long
        self._chosen = random.Random(seed)
        self._teller = Storyteller(Tokens(load_encoding()), seed)
        self._now_ms = SystemClock().now_ms()
        self._rounds: dict[str, int] = {}
        self._digests = [""] + [hashlib.sha256(f"step {step}".encode()).hexdigest() for step in range(self._num_steps)]

    async def all(self, tell: Callable[[str], None] = lambda _: None) -> Filled:
        """Fill it; where to look."""
        for run in (RUN, HELD_OUT):
            await self._ledger.put_run("default", run)
        await self._ledger.take_lease(POLICY, "trainer on gpu-2", self._now_ms, LEASE_MS)
        batch_id, group, began = "", None, time.monotonic()
        for step in range(self._num_steps):
            groups = [self._group(step) for _ in range(RUN.groups_per_step)]
            held_out = [self._held_out(step, place) for place in range(2)]
            batch_id = f"batch-{step + 1:04}"
            await self._ledger.write(self._store_step, step, groups, held_out, batch_id)
            group = groups[0]
            if step % 25 == 24:
                tell(f"{(step + 1) * 64} episodes, {time.monotonic() - began:.0f} s")
        for num_scored in WAITING:
            await self._ledger.write(self._store_waiting, self._group(self._num_steps, num_scored))
        long_episode = "ep-long"
        version = self._version(self._num_steps)
        calls = self._teller.long_episode(long_episode, version, self._now_ms - 900_000, self._long)
        head = self._head(long_episode, "advice/a whole day", None, self._now_ms - 900_000, HELD_OUT.run)
        await self._ledger.write(_store_episodes, [_Episode.of(head, calls, 0.75, HELD_OUT)])
        await self._ledger.score_episodes()
        assert group is not None
        shown = max(group.members, key=lambda member: len(member.calls))
        return Filled(
            long_episode=long_episode,
            episode=shown.head.episode_id,
            call=shown.calls[-1].call_id,
            group=group.group_id,
            batch=batch_id,
            num_versions=self._num_steps,
        )

    def _version(self, version: int) -> Version:
        return Version(policy=POLICY, version=version, digest=self._digests[version])

    def _at_ms(self, step: int) -> int:
        return self._now_ms - (self._num_steps - step + 2) * STEP_MS

    def _skill(self, step: int) -> float:
        """How often an answer is good; it rises, and not evenly."""
        course = ADVANCE * step / self._num_steps - 1.2 + 0.25 * math.sin(step / 9)
        return 1 / (1 + math.exp(-course))

    def _head(self, episode_id: str, task: str, group_id: str | None, at_ms: int, run: str = RUN.run) -> EpisodeHead:
        metadata = msgspec.json.encode({"ticket": self._chosen.randrange(10**6), "channel": "mail"})
        return EpisodeHead(
            episode_id=episode_id, run=run, task=task, group_id=group_id, created_ms=at_ms, metadata=metadata
        )

    def _group(self, step: int, num_scored: int = RUN.group_size) -> _Group:
        family = self._chosen.choices(list(RUN.families), list(RUN.families.values()))[0]
        task = f"{family}/{self._chosen.choice(TASKS[family])[0]}"
        number = self._rounds.get(task, -1) + 1
        self._rounds[task] = number
        group_id = f"grp-{hashlib.sha256(f'{task} {number}'.encode()).hexdigest()[:24]}"
        begun_ms = self._at_ms(step) + self._chosen.randrange(STEP_MS // 2)
        ease = self._chosen.uniform(-0.25, 0.25)
        members: list[_Episode] = []
        for place in range(RUN.group_size):
            episode_id = f"ep-{hashlib.sha256(f'{group_id} {place}'.encode()).hexdigest()[:32]}"
            good = self._chosen.random() < min(0.97, max(0.03, self._skill(step) + ease))
            reward = min(1.0, max(0.0, round(self._chosen.gauss(0.85 if good else 0.2, 0.1), 2)))
            version = self._version(max(0, step - self._chosen.choice((0, 0, 0, 1))))
            at_ms = begun_ms + 700 * place
            members.append(
                _Episode.of(
                    self._head(episode_id, task, group_id, at_ms),
                    self._teller.episode(episode_id, task, version, at_ms, good),
                    reward if place < num_scored else None,
                    RUN,
                    place,
                )
            )
        return _Group(group_id=group_id, task=task, round=number, members=tuple(members), created_ms=begun_ms)

    def _held_out(self, step: int, place: int) -> _Episode:
        episode_id, at_ms = f"ep-held-out-{step:04}-{place}", self._at_ms(step) + 90_000 * place
        good = self._chosen.random() < 0.9 * self._skill(step)
        calls = self._teller.episode(episode_id, "advice/milk", self._version(step), at_ms, good)
        head = self._head(episode_id, "advice/milk", None, at_ms, HELD_OUT.run)
        return _Episode.of(head, calls, 1.0 if good else 0.0, HELD_OUT)

    def _store_step(
        self, connection: Connection, step: int, groups: Sequence[_Group], held_out: Sequence[_Episode], batch_id: str
    ) -> None:
        credits = [group_credit([_outcome(member) for member in group.members], RUN) for group in groups]
        for group, credit in zip(groups, credits, strict=True):
            state = GroupState.SKIPPED if credit.skip else GroupState.TRAINED
            _store_group(connection, group, state, credit.skip)
            _put(connection, tables.standings, [_standing(group, member) for member in credit.members])
        _store_episodes(connection, held_out)
        self._store_batch(connection, step, groups, credits, batch_id)

    def _store_batch(
        self,
        connection: Connection,
        step: int,
        groups: Sequence[_Group],
        credits: Sequence[GroupCredit],
        batch_id: str,
    ) -> None:
        taken = [(group, credit) for group, credit in zip(groups, credits, strict=True) if not credit.skip]
        at_ms = self._at_ms(step + 1)
        batch = Batch(
            batch_id=batch_id,
            policy=POLICY,
            step=step + 1,
            epoch=0,
            fence=1,
            credit=tuple(item for _, credit in taken for item in credit.calls),
            state="trained",
            version=step + 1,
            created_ms=at_ms,
        )
        manifest = _manifest(batch, [group for group, _ in taken])
        scored = [member.reward or 0.0 for group, _ in taken for member in group.members]
        metrics = msgspec.json.encode(self._metrics(batch, taken, sum(scored) / max(1, len(scored))))
        values = msgspec.structs.asdict(batch) | {"credit": msgspec.msgpack.encode(batch.credit), "metrics": metrics}
        del values["group_ids"]
        _put(connection, tables.batches, [values | {"manifest": manifest}])
        for position, (group, credit) in enumerate(zip(groups, credits, strict=True)):
            share = {"group_id": group.group_id, "policy": POLICY, "position": position, "reason": credit.skip}
            where = {"batch_id": None if credit.skip else batch_id, "state": "skipped" if credit.skip else "trained"}
            _put(connection, tables.batch_groups, [share | where])
        self._store_version(connection, step, metrics, at_ms)

    def _store_version(self, connection: Connection, step: int, metrics: bytes, at_ms: int) -> None:
        digest = self._digests[step + 1]
        is_last = step + 1 == self._num_steps
        version = {"policy": POLICY, "version": step + 1, "epoch": 0, "state": "active" if is_last else "retired"}
        known = {"folder": f"{POLICY}@{step + 1}-{digest[:8]}", "digest": digest, "metrics": metrics, "probe": b"null"}
        detail = self._probe(step)
        times = {"created_ms": at_ms + 240_000, "activated_ms": at_ms + 244_000}
        _put(connection, tables.versions, [version | known | times | {"detail": detail}])
        if is_last:
            connection.execute(tables.policies.update().values(active=step + 1, last_version=step + 1))

    def _metrics(self, batch: Batch, taken: Sequence[tuple[_Group, GroupCredit]], reward: float) -> dict[str, Any]:
        rows = [row for group, _ in taken for member in group.members for row in rows_of(member.calls, RUN, POLICY)]
        raw = sum(len(row.prompt_ids) + len(row.sampled_ids) for row in rows)
        done = batch.step / self._num_steps
        sampled = Counter(row.version for row in rows for _ in row.sampled_ids)
        gaps = {str(version): self._gap(tokens) for version, tokens in sorted(sampled.items())}
        return {
            "policy": POLICY,
            "step": batch.step,
            "epoch": 0,
            "batch_id": batch.batch_id,
            "groups": len(taken),
            "episodes": len({row.episode_id for row in rows}),
            "rows": len(rows),
            "loss_type": RUN.loss,
            "branches": len({row.episode_id for row in rows}),
            "micro_batches": 4,
            "trained_tokens": sum(len(row.sampled_ids) for row in rows),
            "raw_tokens": raw,
            "merged_tokens": raw * 2 // 3,
            "run_tokens": raw * 2 // 5,
            "distinct_tokens": raw * 2 // 5,
            "merge_ratio": 1.5,
            "trie_ratio": 2.5,
            "reward_mean": reward,
            "call_reward_mean": None,
            "families": _families(taken),
            "loss": 0.08 * math.exp(-2 * done) + self._chosen.gauss(0, 0.006),
            "grad_norm": abs(self._chosen.gauss(0.6, 0.12)),
            "entropy": 1.9 - 1.1 * done + self._chosen.gauss(0, 0.04),
            "kl": 0.09 * done + abs(self._chosen.gauss(0, 0.004)),
            "off_policy": "token",
            "off_policy_cap": 2.0,
            "ess": min(1.0, 0.95 + self._chosen.gauss(0, 0.015)),
            "capped": 0.004,
            "lag_mean": abs(self._chosen.gauss(0.4, 0.15)),
            "lag_max": self._chosen.choice((1, 1, 2)),
            "gap_at_no_lag": gaps[max(gaps, key=int)],
            "gap_by_version": gaps,
            "problem": None,
            "wait_s": abs(self._chosen.gauss(14, 6)),
            "train_s": abs(self._chosen.gauss(180, 20)),
            "publish_s": abs(self._chosen.gauss(4, 0.6)),
            "version": batch.step,
            "detail": self._probe(batch.step - 1),
        }

    def _probe(self, step: int) -> str:
        """How the gateway recognised the version of a step; the first ones have moved too little to be seen."""
        own, moved = 0.0008 + 0.0002 * (step % 5), 0.0009 + 0.0021 * min(step, 12)
        distances = f"{own:.4f} from this version, {own + moved:.4f} from the one before, {0.01 * (step + 1):.4f} from"
        return (
            f"probe: ok ({distances} the base)"
            if step > 1
            else f"probe: weak ({distances} the base; the digest decides)"
        )

    def _gap(self, tokens: int) -> dict[str, float]:
        """How far the trainer's arithmetic is from the engine's."""
        mean = abs(self._chosen.gauss(0.0042, 0.0006))
        ratio = 1 + self._chosen.gauss(0, 0.0008)
        return {"mean": mean, "maximum": mean * self._chosen.uniform(9, 15), "ratio": ratio, "num_tokens": tokens}

    def _store_waiting(self, connection: Connection, group: _Group) -> None:
        scored = sum(member.reward is not None for member in group.members)
        _store_group(connection, group, GroupState.READY if scored == RUN.group_size else GroupState.OPEN, None)


def _families(taken: Sequence[tuple[_Group, GroupCredit]]) -> dict[str, Any]:
    """What each family of tasks had in a step."""
    groups: dict[str, list[_Group]] = {}
    for group, _ in taken:
        groups.setdefault(group.task.split("/")[0], []).append(group)
    return {
        family: {
            "groups": len(found),
            "reward_mean": fmean(member.reward or 0.0 for group in found for member in group.members),
        }
        for family, found in sorted(groups.items())
    }


def _outcome(member: _Episode) -> EpisodeOutcome:
    return EpisodeOutcome(
        episode_id=member.head.episode_id, status=EpisodeStatus.OK, reward=member.reward, calls=member.calls
    )


def _standing(group: _Group, member: Any) -> dict[str, Any]:
    names = ("episode_id", "reward", "advantage", "member", "why")
    return {"group_id": group.group_id, **{name: getattr(member, name) for name in names}}


def _manifest(batch: Batch, groups: Sequence[_Group]) -> bytes:
    advantages = {item.call_id: item.advantage for item in batch.credit}
    archived: dict[str, Archived] = {}
    credited: list[tuple[Any, float]] = []
    for member in (member for group in groups for member in group.members):
        done = member.done
        episode_id = member.head.episode_id
        receipts = decode_receipts(done.receipts)
        archived[episode_id] = Archived(episode_id=episode_id, chain=done.digest, calls=member.calls, receipts=receipts)
        rows = rows_of(member.calls, RUN, POLICY)
        credited += [(row, advantages[row.call_id]) for row in rows if row.call_id in advantages]
    num_tokens = sum(len(row.sampled_ids) for row, _ in credited)
    trained = {(row.episode_id, row.call_id, row.choice) for row, _ in credited}
    coverage = coverage_of([(one, RUN) for one in archived.values()], POLICY, trained)
    checked = Checked(context=num_tokens, sampled=num_tokens)
    return encode_manifest(manifest_of(batch, RUN.loss, credited, archived, checked, coverage))


def _store_group(connection: Connection, group: _Group, state: GroupState, reason: Any) -> None:
    values = {
        "group_id": group.group_id,
        "tenant": "default",
        "run": RUN.run,
        "task": group.task,
        "task_digest": task_digest(group.task),
        "round": group.round,
        "size": RUN.group_size,
        "state": state,
        "reason": reason,
        "created_ms": group.created_ms,
        "ready_ms": None if state is GroupState.OPEN else group.created_ms + 60_000,
    }
    _put(connection, tables.groups, [values])
    _store_episodes(connection, group.members)


def _store_episodes(connection: Connection, members: Iterable[_Episode]) -> None:
    counted = ("num_calls", "num_samples", "num_excluded", "num_truncated", "num_raw_tokens", "num_distinct_tokens")
    for member in members:
        done, head = member.done, member.head
        values = {name: getattr(head, name) for name in HEAD}
        values |= {name: getattr(done.row, name) for name in counted}
        values |= {
            "task_digest": task_digest(head.task),
            "place": None if head.group_id is None else member.place,
            "state": EpisodeState.ARCHIVED,
            "status": done.row.status,
            "ended_ms": done.row.ended_ms,
            "archived_ms": done.row.archived_ms,
            "has_kinds": True,
        }
        if done.row.spent is not None:
            values |= msgspec.structs.asdict(done.row.spent)
        _put(connection, tables.episodes, [values])
        named = {"episode_id": head.episode_id}
        _put(connection, tables.measures, [named | _measured(done, policy) for policy in done.row.measures])
        _put(connection, tables.timelines, [named | _timeline(done)])
        pinned = [named | {"policy": name, "version": version} for name, version in done.row.versions.items()]
        _put(connection, tables.episode_policies, pinned)
        _put(connection, tables.call_kinds, [named | msgspec.structs.asdict(kind) for kind in done.row.kinds])
        if member.reward is not None:
            _put(connection, tables.rewards, [_reward(member)])


def _measured(done: Packed, policy: str) -> dict[str, Any]:
    version, numbers = done.row.measures[policy]
    told = {"policy": policy, "version": version, "archived_ms": done.row.archived_ms}
    return told | {"numbers": msgspec.json.encode(numbers)}


def _timeline(done: Packed) -> dict[str, Any]:
    return {"blob": done.blob, "digest": done.digest, "receipts": done.receipts}


def _reward(member: _Episode) -> dict[str, Any]:
    return {
        "reward_id": f"reward-{member.head.episode_id}",
        "episode_id": member.head.episode_id,
        "call_id": None,
        "name": "reward",
        "value": member.reward,
        "final": True,
        "source": "grader",
        "metadata": b"null",
        "late": False,
        "created_ms": member.head.created_ms + 31_000,
    }


def _put(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(insert(table), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a data folder that has no database yet")
    parser.add_argument("--episodes", type=int, default=NUM_EPISODES)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)

    async def work() -> Filled:
        ledger = await SqlLedger.connect(f"sqlite:///{given.folder / 'hone.db'}", SystemClock())
        try:
            return await fill(ledger, given.episodes).all(print)
        finally:
            await ledger.close()

    print(asyncio.run(work()))


if __name__ == "__main__":
    main()
