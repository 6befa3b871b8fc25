"""A trainer's life in a process of its own, which ends by itself or at a named stage of a step.

Everything is real (SQL, checkpoints, adapters, TRL) over a tiny model in fp32, but for the gateway: a stand-in serves
what is published. A stage is a place between two things that the trainer does, so it is reached by going around the
object that does them; the process then sends itself a signal. Processes are forked from one that has imported torch.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from signal import SIGKILL, Signals
from typing import Any

import httpx
import msgspec
import torch
from torch import Tensor
from transformers import TrainerCallback

from tests.trainer.models import tiny_model, tiny_tokenizer
from tests.trainer.settings import settings_for
from tests.trainer.world import check_folder
from tracker.clock import SystemClock
from tracker.types import VersionState
from trainer.__main__ import only_one
from trainer.checkpoints import BATCH_FILE
from trainer.config import TrainerSettings
from trainer.feed import Feed
from trainer.grpo import PolicyTrainer
from trainer.loop import Loop
from trainer.stopping import Stop

NUM_STEPS = 3
WEIGHTS = "adapter_model.safetensors"
LIFE_S = 120.0
"""By far longer than a life takes, also on a busy machine."""


class Stage(StrEnum):
    """Where a step can be cut, in the order of a step."""

    READY = "before the groups are taken"
    TAKEN = "after the groups were taken"
    FORWARD = "in the forward pass"
    BACKWARD = "in the backward pass"
    GRADIENTS = "before the optimiser steps"
    STEPPED = "after the optimiser stepped"
    HALF_A_CHECKPOINT = "with half a checkpoint written"
    HALF_AN_OLD_CHECKPOINT = "after the checkpoint was renamed, with half an old one removed"
    CHECKPOINT = "after the checkpoint"
    RESERVED = "after a version was reserved"
    NAMED = "after the version was named"
    HALF_AN_ADAPTER = "with half an adapter written"
    ADAPTER = "after the adapter was renamed"
    SERVED = "after the gateway served it, before it answered"
    ANSWERED = "after the gateway's answer"
    LOGGED = "before the batch is marked"
    MARKED = "after the batch was marked"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a life ends: which signal, where in which step."""

    stage: Stage
    step: int
    number: Signals = SIGKILL


def life_settings(folder: Path, **fields: Any) -> TrainerSettings:
    """One kept checkpoint, so that old ones are removed; a learning rate that follows a schedule."""
    return settings_for(
        folder, **{"max_steps": NUM_STEPS, "poll_s": 0.01, "keep_checkpoints": 1, "dtype": "float32"} | fields
    )


def spawn(folder: Path, ending: Ending | None = None, **fields: Any) -> multiprocessing.Process:
    """Begin a life; it goes on from what lies in the folder."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=live, args=(folder, ending, fields))
    process.start()
    return process  # type: ignore[return-value]


def end_of(process: multiprocessing.Process) -> int | None:
    """Wait for the end of a life; its exit code, or minus the signal."""
    process.join(LIFE_S)
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError("the trainer did not end")
    code = process.exitcode
    process.close()
    return code


def live(folder: Path, ending: Ending | None, fields: dict[str, Any]) -> None:
    """What `python -m trainer` does, with stages in between."""
    gc.freeze()
    torch.set_num_threads(1)
    settings = life_settings(folder, **fields)
    stop = Stop()
    stop.listen()
    with only_one(settings), (folder / "said.log").open("a", buffering=1) as said:
        Life(settings, stop, ending, lambda line: print(line, file=said)).run()


class Life:
    """One life, and how far it has come."""

    def __init__(
        self, settings: TrainerSettings, stop: Stop, ending: Ending | None, say: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._ending = ending
        self._stop = stop
        self._say = say
        self._step = 0
        self._feed = Feed(settings, SystemClock(), "test", stop, say)
        self._ledger = self._feed._ledger

    def run(self) -> None:
        try:
            if self._feed.acquire():
                self._cut_feed()
                loop = Loop(self._settings, self._feed, self._stop, self._say, httpx.MockTransport(self._gateway))
                self._cut_disk(loop)
                loop.run(self._make_trainer)
        finally:
            self._feed.close()

    def _reach(self, stage: Stage) -> None:
        if self._is_at(stage):
            assert self._ending is not None
            os.kill(os.getpid(), self._ending.number)

    def _is_at(self, stage: Stage) -> bool:
        return self._ending is not None and (stage, self._step) == (self._ending.stage, self._ending.step)

    # Going around what the trainer uses.

    def _cut_feed(self) -> None:
        again, next_step, take = self._feed.again, self._feed.next_step, self._ledger.take

        def seen(step: Any) -> Any:
            self._step = 0 if step is None else step.batch.step
            return step

        async def taken(batch: Any, *rest: Any) -> Any:
            self._step = batch.step
            self._reach(Stage.READY)
            stored = await take(batch, *rest)
            self._reach(Stage.TAKEN)
            return stored

        self._feed.again = lambda batch, **how: seen(again(batch, **how))  # type: ignore[method-assign]
        self._feed.next_step = lambda still: seen(next_step(still))  # type: ignore[method-assign]
        self._ledger.take = taken  # type: ignore[method-assign]
        self._cut_after("reserve_version", Stage.RESERVED)
        self._cut_after("put_version", Stage.NAMED)
        self._cut_after("mark_trained", Stage.MARKED, before=Stage.LOGGED)

    def _cut_after(self, name: str, after: Stage, before: Stage | None = None) -> None:
        original = getattr(self._ledger, name)

        async def cut(*given: Any) -> Any:
            if before is not None:
                self._reach(before)
            done = await original(*given)
            self._reach(after)
            return done

        setattr(self._ledger, name, cut)

    def _cut_disk(self, loop: Loop) -> None:
        write, register, rmtree = loop._checkpoints.write, loop._publisher._register, shutil.rmtree

        def written(*given: Any) -> Any:
            done = write(*given)
            self._reach(Stage.CHECKPOINT)
            return done

        def registered(*given: Any) -> Any:
            self._reach(Stage.ADAPTER)
            done = register(*given)
            self._reach(Stage.ANSWERED)
            return done

        def removed(path: Path, *given: Any, **named: Any) -> None:
            if self._is_at(Stage.HALF_AN_OLD_CHECKPOINT) and (path / BATCH_FILE).exists():
                (path / BATCH_FILE).unlink()
                self._reach(Stage.HALF_AN_OLD_CHECKPOINT)
            rmtree(path, *given, **named)

        loop._checkpoints.write = written  # type: ignore[method-assign]
        loop._publisher._register = registered  # type: ignore[method-assign]
        shutil.rmtree = removed  # type: ignore[assignment]

    def _make_trainer(self, loop: Loop) -> PolicyTrainer:
        model = tiny_model(dtype=torch.float32)
        model.model.layers[1].register_forward_pre_hook(lambda *_: self._reach(Stage.FORWARD))
        trainer = PolicyTrainer(self._settings, model, tiny_tokenizer(), loop.steps(), loop.commit)
        trainer.callback_handler.callbacks.insert(0, _AroundOptimiser(self._reach))
        trained = next(parameter for parameter in trainer.lora.parameters() if parameter.requires_grad)
        trained.register_hook(self._in_backward)
        trainer.save_state = self._torn(trainer.save_state, Stage.HALF_A_CHECKPOINT)  # type: ignore[method-assign]
        trainer.write_adapter = self._torn(trainer.write_adapter, Stage.HALF_AN_ADAPTER)  # type: ignore[method-assign]
        return trainer

    def _in_backward(self, gradient: Tensor) -> Tensor:
        self._reach(Stage.BACKWARD)
        return gradient

    def _torn(self, write: Callable[[Path], None], stage: Stage) -> Callable[[Path], None]:
        """Only half of the weights come to lie on the disk."""

        def torn(folder: Path) -> None:
            write(folder)
            if self._is_at(stage):
                os.truncate(folder / WEIGHTS, (folder / WEIGHTS).stat().st_size // 2)
                self._reach(stage)

        return torn

    async def _gateway(self, request: httpx.Request) -> httpx.Response:
        """Serve what is published, as the gateway does; asked again for the active version, change nothing."""
        body = json.loads(request.content)
        await asyncio.to_thread(self._note, body)
        version = await self._ledger.find_version("solver", body["folder"])
        assert version is not None
        if version.state is not VersionState.ACTIVE:
            await type(self._ledger).put_version(
                self._ledger, msgspec.structs.replace(version, state=VersionState.ACTIVE)
            )
            await self._ledger.activate("solver", version.version, body["epoch"])
        if self._is_at(Stage.SERVED):
            self._reach(Stage.SERVED)
            await asyncio.sleep(LIFE_S * 10)
        return httpx.Response(201, json={"policy": "solver", "version": version.version, "state": "active"})

    def _note(self, body: dict[str, Any]) -> None:
        check_folder(self._settings.stores.adapters_dir / body["folder"], body["digest"])
        with (self._settings.stores.data_dir / "posts.jsonl").open("a") as file:
            file.write(json.dumps([body["folder"], body["digest"]]) + "\n")


class _AroundOptimiser(TrainerCallback):
    def __init__(self, reach: Callable[[Stage], None]) -> None:
        self._reach = reach

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._reach(Stage.GRADIENTS)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._reach(Stage.STEPPED)
