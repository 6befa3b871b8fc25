"""A trainer without a model, for benches of everything around the step.

Lease, groups, credit, receipts and versions are real; the step sleeps for as long as it is told, and the adapter that
it publishes holds only its own number. It runs in a thread of its own, as a trainer runs in a process of its own: from
`start` until `stop` it takes steps.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import httpx
import msgspec

from tests.fakes.adapter_files import marked_weights
from tracker.clock import SystemClock
from tracker.settings import PolicySettings, StoreSettings
from trainer.config import TrainerSettings
from trainer.feed import Feed
from trainer.steps import Step
from trainer.stopping import Stop

POLICY = "solver"
POLL_S = 0.5
LORA = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}


@dataclass(slots=True)
class Diary:
    """What the trainer did, read while it runs."""

    num_steps: int = 0
    waited_s: float = 0.0
    slept_s: float = 0.0
    published_s: float = 0.0
    lags: list[int] = field(default_factory=list)
    """One for each trained row: versions between the one that sampled it and the newest at the start of the step."""


class SleepingTrainer:
    """One policy's trainer on the data folder of a gateway that runs."""

    def __init__(self, data_dir: Path, gateway_url: str, key: str, step_s: float) -> None:
        policy = PolicySettings(name=POLICY, model="base")
        stores = StoreSettings(data_dir=data_dir, database_url=f"sqlite:///{data_dir / 'hone.db'}", policies=(policy,))
        self.diary = Diary()
        self._settings = TrainerSettings(stores=stores, policy=policy, gateway_url=gateway_url, key=key, poll_s=POLL_S)
        self._step_s = step_s
        self._stop = Stop()
        self._thread = Thread(target=self._run)
        self._failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the step at hand; raises what went wrong."""
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._train()
        except BaseException as failure:  # noqa: BLE001 - it is raised again in `stop`, by the thread that waits
            self._failure = failure

    def _train(self) -> None:
        feed = Feed(self._settings, SystemClock(), "bench", self._stop, lambda _: None)
        headers = {"Authorization": f"Bearer {self._settings.key}"}
        try:
            with httpx.Client(base_url=self._settings.gateway_url, headers=headers, timeout=60) as http:
                if feed.acquire():
                    self._take_steps(feed, http)
        finally:
            feed.close()

    def _take_steps(self, feed: Feed, http: httpx.Client) -> None:
        while True:
            began = time.monotonic()
            step = feed.next_step(lambda: True)
            took = time.monotonic()
            self.diary.waited_s += took - began
            if step is None:
                return
            time.sleep(self._step_s)
            stepped = time.monotonic()
            self._publish(feed, http, step)
            self.diary.slept_s += stepped - took
            self.diary.published_s += time.monotonic() - stepped
            self.diary.lags += step.lags
            self.diary.num_steps += 1

    def _publish(self, feed: Feed, http: httpx.Client, step: Step) -> None:
        """As the trainer does it: number, folder, registration, and then the batch is trained."""
        reserved = feed.reserve_version(step.batch.epoch)
        weights = marked_weights(f"weights of step {step.batch.step}".encode())
        digest = hashlib.sha256(weights).hexdigest()
        name = f"{POLICY}@{reserved.version}-{digest[:8]}"
        feed.put_version(msgspec.structs.replace(reserved, folder=name, digest=digest))
        folder = self._settings.stores.adapters_dir / name
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text(json.dumps(LORA))
        (folder / "adapter_model.safetensors").write_bytes(weights)
        body = {"folder": name, "digest": digest, "epoch": step.batch.epoch}
        http.post(f"/v1/policies/{POLICY}/versions", json=body).raise_for_status()
        feed.mark_trained(msgspec.structs.replace(step.batch, state="trained", version=reserved.version))
