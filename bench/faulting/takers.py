"""Trainers without a model that compete for one policy: they take groups as the real one does and at times fall asleep.

Each takes the lease, groups and their frozen credit with the trainer's own code (`trainer/feed.py`). Every few steps
one sleeps longer than its lease lasts, in the middle of a step, and then goes on as if nothing had happened: what it
writes then must be refused. Like a trainer that a supervisor starts again, one that failed begins anew with what it had
taken. The takers' clock runs fast, so that leases are over within a second.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import msgspec

from bench.faulting.load import POLICY
from bench.faulting.verdict import Taken
from tracker.errors import HoneError, LeaseLost
from tracker.settings import PolicySettings, StoreSettings
from trainer.config import TrainerSettings
from trainer.feed import Feed
from trainer.steps import Step
from trainer.stopping import Stop

SPEED = 10
"""The takers' time runs so many times faster."""
LEASE_S = 10.0
STEP_S = 0.05
SLEEP_EVERY = 4
AGAIN_S = 0.5


class FastClock:
    """Begins with the machine's time and runs ahead of it."""

    def __init__(self) -> None:
        self._began_ns = time.time_ns()

    def now_ms(self) -> int:
        return (self._began_ns + (time.time_ns() - self._began_ns) * SPEED) // 1_000_000


@dataclass(slots=True)
class Diary:
    """What one taker did."""

    trained: list[Taken] = field(default_factory=list)
    """What it marked as trained, and was not refused."""
    num_refused: int = 0
    """Writes that came too late."""
    num_lives: int = 0


class Taker:
    """One of several that want the same policy."""

    def __init__(self, name: str, database_url: str, folder: Path, clock: FastClock) -> None:
        policy = PolicySettings(name=POLICY, model="base")
        stores = StoreSettings(data_dir=folder, database_url=database_url, policies=(policy,))
        self._settings = TrainerSettings(stores=stores, policy=policy, poll_s=0.1, lease_ttl_s=LEASE_S)
        self._name = name
        self._clock = clock
        self._stop = Stop()
        self._thread = Thread(target=self._live, name=name)
        self._num_steps = 0
        self.diary = Diary()
        self.failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def join(self) -> None:
        self._thread.join()

    def _live(self) -> None:
        """Life after life until told to stop."""
        try:
            while not self._stop.is_set():
                self._one_life()
                self._stop.wait(AGAIN_S)
        except BaseException as failure:  # noqa: BLE001 - it is told by whoever waits for the thread
            self.failure = failure

    def _one_life(self) -> None:
        self.diary.num_lives += 1
        feed: Feed | None = None
        try:
            feed = Feed(self._settings, self._clock, f"{self._name}-{self.diary.num_lives}", self._stop, lambda _: None)
            if feed.acquire():
                self._go_on(feed)
                while (step := feed.next_step(lambda: True)) is not None:
                    self._train(feed, step)
        except LeaseLost:
            self.diary.num_refused += 1
        except HoneError:
            pass  # the database is away: the supervisor starts it again
        finally:
            if feed is not None:
                _close(feed)

    def _go_on(self, feed: Feed) -> None:
        """A batch that was taken and not trained is trained again, as after a crash."""
        for batch in reversed(feed.recent_batches()):
            if batch.state == "taken" and (step := feed.again(batch)) is not None:
                self._train(feed, step)

    def _train(self, feed: Feed, step: Step) -> None:
        self._num_steps += 1
        is_asleep = self._num_steps % SLEEP_EVERY == 0
        time.sleep(1.5 * LEASE_S / SPEED if is_asleep else STEP_S)
        feed.mark_trained(msgspec.structs.replace(step.batch, state="trained"))
        self.diary.trained.append(Taken(step.batch.batch_id, step.batch.group_ids))


def _close(feed: Feed) -> None:
    try:
        feed.close()
    except HoneError:
        return  # the lease runs out by itself
