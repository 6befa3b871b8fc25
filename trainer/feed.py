"""The trainer's door to SQL: the lease, the groups that are ready, the batches that were taken.

The rule: a group is trained once. A batch is taken in one transaction with its credit frozen; one that was taken and
has no checkpoint yet is given again, with the same rows and credit, and nothing new is taken before. What is decided of
a group is in `taking.py`; when a batch counts as trained is for the loop to say. All of it runs on one event loop that
belongs to this object and sleeps while the trainer computes.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

import msgspec

from tracker.clock import Clock
from tracker.credit import EpisodeOutcome, call_rewards, episode_reward
from tracker.errors import Conflict, CorruptRecord, LeaseLost
from tracker.ledger import SqlLedger
from tracker.samples import Row
from tracker.types import (
    Batch,
    EpisodeState,
    EpisodeStatus,
    Group,
    GroupState,
    Policy,
    RunSettings,
    SkipReason,
    Version,
)
from tracker.vault import Vault
from trainer.choosing import choose
from trainer.config import TrainerSettings
from trainer.proving import prove, sealed_calls
from trainer.steps import FamilyShare, Step
from trainer.stopping import LOOK_S, Stop, Stopped
from trainer.taking import Course, LoadedGroup, Verdict, facts_of, verdicts
from trainer.waiting import held_up_by, in_order, why_held
from trainer.weights import check_loss

RECENT_BATCHES: Final = 64
T = TypeVar("T")


class Feed:
    """One policy's batches. Used by one thread; `close` gives the lease back."""

    def __init__(
        self, settings: TrainerSettings, clock: Clock, holder: str, stop: Stop, say: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._policy = settings.policy.name
        self._clock = clock
        self._holder = holder
        self._stop = stop
        self._say = say
        self._said = ""
        self._fence = 0
        self._runner = asyncio.Runner()
        stores = settings.stores
        try:
            self._ledger = self._run(SqlLedger.connect(stores.database_url, clock, Vault(stores.encryption_key)))
        except BaseException:
            self._runner.close()
            raise

    def close(self) -> None:
        """Let another trainer take over at once."""
        try:
            if self._fence:
                self._run(self._ledger.release_lease(self._policy, self._fence))
        finally:
            try:
                self._run(self._ledger.close())
            finally:
                self._runner.close()

    # The lease.

    def acquire(self) -> bool:
        """Wait for the lease; False if told to stop meanwhile."""
        while not self._stop.is_set():
            fence = self._run(self._renewed())
            if fence is not None:
                self._fence = fence
                return True
            self._tell(f"waiting: another trainer holds policy {self._policy}")
            self._stop.wait(self._settings.poll_s)
        return False

    def renew(self) -> None:
        """Hold on to the lease before something long; raises `LeaseLost` if another trainer has it."""
        self._run(self._hold())

    async def _hold(self) -> None:
        if await self._renewed() != self._fence:
            raise LeaseLost(f"Another trainer holds policy {self._policy} now; this one stops.")

    async def _renewed(self) -> int | None:
        ttl_ms = int(self._settings.lease_ttl_s * 1000)
        return await self._ledger.take_lease(self._policy, self._holder, self._clock.now_ms(), ttl_ms)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` gives, which may take long: the lease is held meanwhile. Raises `Stopped` when told to stop."""
        return self._run(self._while_held(work))

    async def _while_held(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        renew_every_s = self._settings.lease_ttl_s / 3
        renew_at = time.monotonic() + renew_every_s
        try:
            while not task.done():
                if self._stop.is_set():
                    raise Stopped
                await asyncio.wait({task}, timeout=LOOK_S)
                if time.monotonic() > renew_at:
                    await self._hold()
                    renew_at = time.monotonic() + renew_every_s
        finally:
            task.cancel()
            await asyncio.wait({task})
        return task.result()

    # What is there.

    def policy(self) -> Policy:
        return self._run(self._ledger.ensure_policy(self._policy))

    def versions(self) -> list[Version]:
        return self._run(self._ledger.list_versions(self._policy))

    def recent_batches(self) -> list[Batch]:
        """Newest first."""
        return self._run(self._ledger.last_batches(self._policy, RECENT_BATCHES))

    def check_runs(self) -> None:
        """Refuse a run whose loss does not exist, at start."""
        for run in self._run(self._ledger.list_runs("default")):
            check_loss(run.loss)

    # Steps.

    def again(self, batch: Batch, *, is_stepped: bool = False) -> Step | None:
        """A batch that was taken before, with the rows and the credit it was taken with; `None` if it was refused.

        One that the weights have stepped on already is marked trained then, and not published."""
        return self._checked(self.owned(batch), 0.0, is_stepped)

    def next_step(self, is_current: Callable[[], bool]) -> Step | None:
        """Wait until a step's groups are ready and take them; `None` when told to stop or no longer current."""
        started = time.monotonic()
        while not self._stop.is_set():
            self.renew()
            if not is_current():
                return None
            batch = self._run(self._take())
            step = None if batch is None else self._checked(batch, time.monotonic() - started)
            if step is not None:
                self._said = ""
                return step
            self._stop.wait(self._settings.poll_s)
        return None

    # What became of them.

    def reserve_version(self, epoch: int) -> Version:
        return self._run(self._ledger.reserve_version(self._policy, epoch, self._clock.now_ms()))

    def put_version(self, version: Version) -> None:
        self._run(self._ledger.put_version(version))

    def mark_trained(self, batch: Batch) -> None:
        self._run(self._ledger.mark_trained(batch))

    def owned(self, batch: Batch) -> Batch:
        """A batch of an earlier life of this trainer, under the fence of this one."""
        return msgspec.structs.replace(batch, fence=self._fence)

    def _checked(self, batch: Batch, waited_s: float, is_stepped: bool = False) -> Step | None:
        """The step of a batch; one whose rows are not what the engine saw is refused, and its groups are skipped."""
        try:
            return self._run(self._step(batch, waited_s))
        except CorruptRecord as error:
            self._say(f"step {batch.step} is refused: {error.message}")
            self._run(self._refuse(batch, error.message, is_stepped))
            return None

    async def _refuse(self, batch: Batch, why: str, is_stepped: bool) -> None:
        if is_stepped:
            told = json.loads(batch.metrics) | {"problem": f"trained and not published: {why}"}
            await self._ledger.mark_trained(msgspec.structs.replace(batch, metrics=json.dumps(told).encode()))
        else:
            await self._ledger.drop_batch(batch.batch_id, SkipReason.REFUSED, self._fence, why)

    async def _take(self) -> Batch | None:
        """Take the next step's groups if there are enough; skip those that teach nothing on the way."""
        by_run: dict[tuple[str, str], list[Group]] = {}
        for group in await self._ledger.ready_heads(self._policy):
            by_run.setdefault((group.tenant, group.run), []).append(group)
        in_flight = await self._ledger.groups_in_flight(self._policy) if by_run else []
        names = by_run.keys() | {(group.tenant, group.run) for group in in_flight}
        runs = {named: await self._ledger.get_run(*named) for named in names}
        waits: list[str] = []
        for (tenant, name), groups in by_run.items():
            run = runs[tenant, name]
            taken = await self._ledger.tasks_taken(self._policy, tenant, name) if run.families else {}
            choice = choose(in_order(groups, in_flight, run), run, taken)
            if choice.group_ids:
                if held := held_up_by(in_flight, choice.group_ids, runs, self._clock.now_ms()):
                    self._tell(f"waiting: {why_held(held, runs)}")
                    return None
                found = await self._ledger.ready_groups(self._policy, choice.group_ids)
                return await self._take_from(found, run) if len(found) == len(choice.group_ids) else None
            waits.append(choice.waits)
        num_open = await self._ledger.num_groups([GroupState.OPEN])
        self._tell(f"waiting: {', '.join(waits) or 'no group is ready'}, {num_open} open")
        return None

    async def _take_from(self, groups: Sequence[Group], run: RunSettings) -> Batch | None:
        """Take these groups, or skip some of them and take nothing yet."""
        policy = await self._ledger.ensure_policy(self._policy)
        course = Course.of(policy.active, await self._ledger.list_versions(self._policy))
        loaded = [await self._load(group, run) for group in groups]
        refused = [Verdict(item.group, (), SkipReason.REFUSED) for item in loaded if item.fault]
        if refused:
            await self._skip(refused)
            return None
        found = verdicts(loaded, run, self._policy, course)
        if any(verdict.skip for verdict in found):
            await self._skip(found)
            return None
        last = await self._ledger.last_batches(self._policy, 1)
        batch = Batch(
            batch_id=f"batch-{uuid.uuid4().hex}",
            policy=self._policy,
            step=max((batch.step for batch in last), default=0) + 1,
            epoch=policy.epoch,
            fence=self._fence,
            group_ids=tuple(group.group_id for group in groups),
            credit=tuple(credit for verdict in found for credit in verdict.credit),
            metrics=json.dumps(facts_of(loaded, run, self._policy)).encode(),
            created_ms=self._clock.now_ms(),
        )
        try:
            return await self._ledger.take(batch, sum(group.num_rewards for group in loaded))
        except Conflict as error:
            # A reward, a deletion or a rollback came between reading and taking: the next look sees it.
            self._tell(f"waiting: {error.message}")
            return None

    async def _skip(self, found: Sequence[Verdict]) -> None:
        for verdict in found:
            if verdict.skip:
                self._say(
                    f"group of task {verdict.group.task!r} (round {verdict.group.round}): {verdict.skip}, skipped"
                )
                await self._ledger.skip_group(verdict.group.group_id, verdict.skip, self._policy, self._fence)

    async def _load(self, group: Group, run: RunSettings) -> LoadedGroup:
        """A group with what its members did, or what of it is not what was sealed."""
        try:
            return await self._loaded(group, run)
        except CorruptRecord as error:
            self._say(f"group of task {group.task!r} (round {group.round}) is refused: {error.message}")
            return LoadedGroup(group, (), 0, fault=error.message)

    async def _loaded(self, group: Group, run: RunSettings) -> LoadedGroup:
        outcomes: list[EpisodeOutcome] = []
        num_rewards = 0
        for member in group.members:
            if member.state is not EpisodeState.ARCHIVED:
                continue
            events = await self._ledger.rewards(member.episode_id)
            num_rewards += len(events)
            # What came after another policy's share was taken is late for this one too: both see the same rewards.
            rewards = [event for event in events if not event.late]
            outcomes.append(
                EpisodeOutcome(
                    episode_id=member.episode_id,
                    status=member.status or EpisodeStatus.OK,
                    reward=episode_reward(rewards, run.reward_weights),
                    calls=await sealed_calls(self._ledger, member.episode_id),
                    call_rewards=call_rewards(rewards, run.reward_weights),
                )
            )
        return LoadedGroup(group, tuple(outcomes), num_rewards)

    async def _step(self, batch: Batch, waited_s: float) -> Step:
        """The rows of a taken batch, checked against their receipts, and its manifest, stored."""
        told: dict[str, Any] = json.loads(batch.metrics)
        run = await self._ledger.get_run(told["tenant"], told["run"])
        proven = await prove(self._ledger, batch, run, self._settings.stores.adapters_dir)
        course = Course.of(
            (await self._ledger.ensure_policy(self._policy)).active, await self._ledger.list_versions(self._policy)
        )
        return Step(
            batch=batch,
            rows=proven.rows,
            advantages=proven.advantages,
            loss=check_loss(run.loss),
            lags=_lags(proven.rows, course),
            reward_mean=told.get("reward_mean"),
            call_reward_mean=told.get("call_reward_mean"),
            families={family: FamilyShare(**share) for family, share in told.get("families", {}).items()},
            num_groups=len(batch.group_ids),
            manifest=proven.manifest,
            waited_s=waited_s,
        )

    def _tell(self, line: str) -> None:
        """Say what is waited for, once for each change."""
        if line != self._said:
            self._said = line
            self._say(line)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to its end, so that the connection stays in step: who is told to stop is so between two of these."""
        with self._stop.shielded():
            return self._runner.run(work)


def _lags(rows: Sequence[Row], course: Course) -> tuple[int, ...]:
    return tuple(course.lag(row.version) for row in rows)
