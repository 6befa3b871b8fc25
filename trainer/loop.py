"""The trainer's loop: take a step, train it, checkpoint, publish, mark it trained. In this order, always.

The rename of the checkpoint is the commit point. Killed before it, the step is trained again from the same rows and
credit; killed after it, the weights are published and the batch is marked at the next start: no group is trained twice.
A rollback raises the policy's epoch: training then goes on from the checkpoint of the version rolled back to. Told to
stop, it ends at once, wherever it is (`stopping.py`): what was not finished is finished after the next start.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

from tracker.adapters import WEIGHTS_FILE
from tracker.types import Batch, Policy
from trainer.checkpoints import Checkpoint, Checkpoints
from trainer.config import TrainerSettings
from trainer.feed import Feed
from trainer.grpo import PolicyTrainer, read_weights
from trainer.metrics import append, line, step_metrics
from trainer.publish import Published, Publisher, timed
from trainer.steps import Report, Step
from trainer.stopping import Stop, Stopped

METRICS_FILE: Final = "metrics.jsonl"
REPORT_FILE: Final = "report.json"
TAKEN: Final = "taken"
MakeTrainer = Callable[["Loop"], PolicyTrainer]


@dataclass(frozen=True, slots=True)
class Start:
    """Where training goes on."""

    policy: Policy
    checkpoint: Checkpoint | None = None
    adapter: Path | None = None
    """Weights to begin with where the checkpoint they came from is gone: the optimiser then starts anew."""
    unmarked: Batch | None = None
    """Stepped, as its checkpoint shows, and not marked trained yet."""
    unstepped: Batch | None = None
    """Taken, and to be trained again."""


def find_start(policy: Policy, batches: list[Batch], checkpoints: Checkpoints, adapter: Path | None) -> Start:
    """Decide where to go on from what SQL and the checkpoints say; `adapter` is the active version's folder.

    Batches up to the newest whole checkpoint of this epoch are stepped; the one after it is not. In an epoch without a
    checkpoint the one of the active version counts.
    """
    whole = checkpoints.all()
    newest = next((item for item in whole if item.origin.epoch == policy.epoch), None)
    taken = [batch for batch in batches if batch.state == TAKEN and batch.epoch == policy.epoch]
    if newest is None:
        source = next((batch for batch in batches if policy.active and batch.version == policy.active), None)
        chosen = None if source is None else checkpoints.find(source.batch_id)
        return Start(policy, chosen, None if chosen else adapter, None, taken[0] if taken else None)
    unmarked = next((batch for batch in taken if batch.batch_id == newest.origin.batch_id), None)
    unstepped = next((batch for batch in taken if batch.step > newest.origin.step), None)
    return Start(policy, newest, None, unmarked, unstepped)


class Loop:
    """One policy's training from one start until it is told to stop, is done, or the policy is rolled back."""

    def __init__(
        self,
        settings: TrainerSettings,
        feed: Feed,
        stop: Stop,
        say: Callable[[str], None],
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._settings = settings
        self._feed = feed
        self._stop = stop
        self._say = say
        self._checkpoints = Checkpoints(settings.checkpoints_dir, settings.keep_checkpoints)
        self._publisher = Publisher(settings, feed, stop, say, transport)
        self.facts: Callable[[], dict[str, Any]] = dict
        """What every step's metrics say besides: what was trained on."""
        self._start = Start(feed.policy())
        self._trainer: PolicyTrainer | None = None

    @property
    def checkpoint(self) -> Path | None:
        """The folder of the checkpoint that training goes on from."""
        return None if self._start.checkpoint is None else self._start.checkpoint.folder

    def run(self, make_trainer: MakeTrainer) -> None:
        """Train until told to stop or done; after a rollback, go on from where it leads."""
        try:
            with self._stop.breaking_off():
                self._run(make_trainer)
        except Stopped:
            self._say("told to stop: what is not finished is finished after the next start")

    def _run(self, make_trainer: MakeTrainer) -> None:
        self._checkpoints.clean()
        self._publisher.clean()
        while not self._stop.is_set():
            self._start = self._find_start()
            self._trainer = make_trainer(self)
            self._train(self._trainer)
            if self._is_current():
                return
            self._say(f"policy {self._settings.policy.name} was rolled back to version {self._feed.policy().active}")

    def _train(self, trainer: PolicyTrainer) -> None:
        checkpoint, adapter = self._start.checkpoint, self._start.adapter
        if adapter is not None:
            self._say(f"no checkpoint is left of {adapter.name}: its weights are taken, the optimiser starts anew")
            trainer.load_adapter_weights(read_weights(adapter / WEIGHTS_FILE))
        if checkpoint is not None:
            self._say(f"going on from step {checkpoint.origin.step}")
        trainer.run(self.checkpoint)

    def steps(self) -> Iterator[Step]:
        """What TRL's loop is fed with: first what an earlier life left, then what becomes ready."""
        if self._start.unmarked is not None and not self._finish(self._start.unmarked):
            return
        again = None if self._start.unstepped is None else self._feed.again(self._start.unstepped)
        if again is not None and not self._is_done():
            self._say(f"step {again.batch.step} was not finished: it is trained again")
            yield again
        while not self._is_done():
            step = self._feed.next_step(self._is_current)
            if step is None:
                return
            yield step

    def commit(self, step: Step, report: Report) -> bool:
        """The optimiser has stepped: checkpoint, publish, mark. False ends the training."""
        self._feed.renew()
        metrics = step_metrics(step, report) | self.facts()

        def save(folder: Path) -> None:
            self._model().save_state(folder)
            (folder / REPORT_FILE).write_text(json.dumps(metrics))

        with self._stop.shielded():
            self._checkpoints.write(step.batch, save)
        return self._publish_and_mark(step, metrics, self._why_not(report))

    def _finish(self, batch: Batch) -> bool:
        """Publish and mark a batch whose checkpoint was committed just before the end of an earlier life."""
        assert self._start.checkpoint is not None
        step = self._feed.again(batch, is_stepped=True)
        if step is None:
            return True
        metrics = json.loads((self._start.checkpoint.folder / REPORT_FILE).read_text())
        return self._publish_and_mark(step, metrics, metrics["problem"] or "")

    def _publish_and_mark(self, step: Step, metrics: dict[str, Any], why_not: str) -> bool:
        published, seconds = Published(None, why_not), 0.0
        if not why_not:
            gap: dict[str, float] | None = metrics["gap_at_no_lag"]
            noise = None if gap is None else gap["mean"]
            published, seconds = timed(lambda: self._publisher.publish(self._model(), step, metrics, noise))
        metrics |= {"version": published.version, "publish_s": round(seconds, 3), "detail": published.detail}
        append(self._settings.work_dir / METRICS_FILE, metrics)
        self._mark(step, published, metrics)
        self._say(line(metrics))
        return not self._stop.is_set() and self._is_current()

    def _mark(self, step: Step, published: Published, metrics: dict[str, Any]) -> None:
        if not self._is_current():
            # The rollback has dropped the batch; its groups are not ours any more.
            return
        told = json.loads(step.batch.metrics)
        batch = msgspec.structs.replace(
            step.batch,
            state="trained",
            version=published.version,
            manifest=step.manifest,
            metrics=json.dumps(told | metrics).encode(),
        )
        self._feed.mark_trained(batch)

    def _why_not(self, report: Report) -> str:
        """Why this step's weights are not published; empty where they are."""
        bounds = self._settings.bounds
        if report.problem:
            return f"the step was skipped: {report.problem}"
        if report.ess < bounds.min_ess:
            return f"not published: the effective sample size is {report.ess:.2f}, under {bounds.min_ess}"
        if report.entropy < bounds.min_entropy:
            return f"not published: the entropy is {report.entropy:.3f}, under {bounds.min_entropy}"
        if bounds.max_kl is not None and report.kl is not None and report.kl > bounds.max_kl:
            return f"not published: the KL is {report.kl:.3f}, over {bounds.max_kl}"
        return ""

    def _find_start(self) -> Start:
        policy = self._feed.policy()
        active = next((item for item in self._feed.versions() if item.version == policy.active and item.folder), None)
        folder = None if active is None else self._settings.stores.adapters_dir / active.folder
        there = folder if folder is not None and (folder / WEIGHTS_FILE).is_file() else None
        return find_start(policy, self._feed.recent_batches(), self._checkpoints, there)

    def _is_current(self) -> bool:
        return self._feed.policy().epoch == self._start.policy.epoch

    def _is_done(self) -> bool:
        limit = self._settings.max_steps
        return limit is not None and self._model().num_steps >= limit

    def _model(self) -> PolicyTrainer:
        assert self._trainer is not None
        return self._trainer
