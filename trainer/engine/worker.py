"""The one thread that touches the model, and the lanes that take turns on it.

The rule: everything that changes the model, a cache or a queue happens on this thread, between two steps. That is the
lock that sets the adapter: each step switches to its lane's adapter and runs one forward, so several versions are live
at once and none can see another's weights or blocks. The event loop talks to it through commands and hears of tokens in
one batch a step. What a request means is left to the app.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

import torch
from transformers import PreTrainedModel

from tracker.errors import BadRequest, NotFound, Unavailable
from trainer.engine.adapters import ModelAdapters, check_adapter, linear_layers
from trainer.engine.config import EngineConfig
from trainer.engine.scheduler import Ask, Deliver, Event, Lane, Running
from trainer.engine.slots import CacheShape
from trainer.engine.weights import cache_shape, forward

T = TypeVar("T")

_STOPPED = "the engine is stopping or its model thread has died; see its log"


@dataclass(slots=True)
class Live:
    """A version that can be asked: its lane, where it came from, and who waits for it to drain."""

    lane: Lane
    path: str
    drained: list[Future[None]] = field(default_factory=list[Future[None]])


@dataclass(frozen=True, slots=True)
class Ticket:
    """A sequence that was handed to a lane, for cancelling it."""

    version: str | None
    running: Running


@dataclass(frozen=True, slots=True)
class Load:
    """How much each version has to do, for /metrics and tests."""

    version: str | None
    num_running: int
    num_waiting: int


class Worker:
    """Runs the model on its own thread. `None` names the base model, a name an adapter."""

    def __init__(self, model: PreTrainedModel, settings: EngineConfig) -> None:
        self._model = model
        self._settings = settings
        self._layers = linear_layers(model)
        self._shape: CacheShape = cache_shape(model.config, model.dtype, settings)
        self._adapters = ModelAdapters(model)
        self._live: dict[str | None, Live] = {None: Live(self._lane(), "")}
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._outbox: list[tuple[Deliver, Event]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="hone-engine-model", daemon=True)

    def _lane(self) -> Lane:
        return Lane(self._shape, self._settings.max_batch_tokens)

    # From the event loop -------------------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and not self._is_stopping

    async def stop(self) -> None:
        """End the thread after its current step; whoever still waits for tokens gets a failure."""
        self._commands.put(self._set_stopping)
        await asyncio.to_thread(self._thread.join)

    def tickets(self, version: str | None, asks: list[Ask], deliver: Callable[[int, Event], None]) -> list[Ticket]:
        """Make tickets for sequences of a version; `deliver(index, event)` will be called on the event loop."""
        return [
            Ticket(version, Running(ask, partial(self._note, partial(deliver, index))))
            for index, ask in enumerate(asks)
        ]

    async def submit(self, tickets: list[Ticket]) -> None:
        """Hand sequences to their version's lane. Whoever submits cancels in the end, whatever happened."""
        await self._call(partial(self._submit, tickets))

    def cancel(self, tickets: list[Ticket]) -> None:
        """Take sequences out of their lane before its next step."""
        self._commands.put(partial(self._cancel, tickets))

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Check and load an adapter; on any error nothing has changed."""
        await asyncio.to_thread(check_adapter, folder, self._layers, self._settings.max_lora_rank)
        await self._call(partial(self._load, name, folder))

    async def unload_adapter(self, name: str) -> None:
        """Take no more requests for an adapter, let those in flight finish, then free its weights and its cache."""
        await asyncio.wrap_future(await self._call(partial(self._begin_unload, name)))

    async def loads(self) -> list[Load]:
        return await self._call(
            lambda: [Load(name, one.lane.num_running, one.lane.num_waiting) for name, one in self._live.items()]
        )

    def adapters(self) -> dict[str, str]:
        """Name and path of every adapter that can be asked."""
        return {name: one.path for name, one in dict(self._live).items() if name is not None and not one.drained}

    async def _call(self, action: Callable[[], T]) -> T:
        """Run an action on the model's thread and return what it returns."""
        if not self.is_alive:
            raise Unavailable(_STOPPED)
        future: Future[T] = Future()

        def perform() -> None:
            # Whoever asked may have left before its turn came: then nothing shall happen.
            if not future.set_running_or_notify_cancel():
                return
            if self._is_stopping:
                future.set_exception(Unavailable(_STOPPED))
                return
            try:
                future.set_result(action())
            except (BadRequest, NotFound) as error:
                future.set_exception(error)

        self._commands.put(perform)
        if self._is_stopping:
            # The thread may have looked for the last time: a command refuses itself wherever it runs now.
            self._obey_now()
        return await asyncio.wrap_future(future)

    # On the model's thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._settings.threads is not None:
            torch.set_num_threads(self._settings.threads)
        try:
            with torch.inference_mode():
                while not self._is_stopping:
                    self._turn()
        finally:
            # A crash ends here too: nobody may wait for ever, and /health turns red.
            self._is_stopping = True
            for one in self._live.values():
                one.lane.fail_all("the engine stopped before the answer was complete")
                for future in one.drained:
                    future.set_exception(Unavailable(_STOPPED))
            self._flush()
            self._obey_now()

    def _turn(self) -> None:
        """Obey what was asked since the last turn, then let every lane with work take one step."""
        self._obey()
        for name, one in list(self._live.items()):
            if one.lane.has_work and not self._is_stopping:
                self._adapters.use(name)
                one.lane.step(partial(forward, self._model))
                self._flush()
                # Between two lanes' steps too: a cancelled request shall not cost another round.
                self._obey_now()
        self._retire_drained()

    def _obey(self) -> None:
        if not any(one.lane.has_work for one in self._live.values()):
            self._commands.get()()
        self._obey_now()

    def _obey_now(self) -> None:
        while True:
            try:
                command = self._commands.get_nowait()
            except Empty:
                return
            command()

    def _flush(self) -> None:
        """Tell the event loop of everything that happened in a step with one wake-up."""
        if not self._outbox or self._loop is None or self._loop.is_closed():
            return
        batch, self._outbox = self._outbox, []
        self._loop.call_soon_threadsafe(_deliver_all, batch)

    def _set_stopping(self) -> None:
        self._is_stopping = True

    def _submit(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            one = self._live.get(ticket.version)
            if one is None or one.drained:
                raise NotFound(f"The model `{ticket.version}` does not exist.", param="model")
            one.lane.add(ticket.running)

    def _note(self, deliver: Deliver, event: Event) -> None:
        self._outbox.append((deliver, event))

    def _cancel(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            one = self._live.get(ticket.version)
            if one is not None:
                one.lane.cancel(ticket.running)

    def _load(self, name: str, folder: Path) -> None:
        if name in self._live:
            raise BadRequest(f"The lora adapter '{name}' has already been loaded.", param="lora_name")
        if len(self._live) > self._settings.max_loras:
            raise BadRequest(
                f"All {self._settings.max_loras} adapter slots (--max-loras) are taken; unload an adapter first",
                param="lora_name",
            )
        self._adapters.add(name, folder)
        self._live[name] = Live(self._lane(), str(folder))

    def _begin_unload(self, name: str) -> Future[None]:
        one = self._live.get(name)
        if one is None:
            raise NotFound(f"The lora adapter '{name}' cannot be found.", param="lora_name")
        done: Future[None] = Future()
        one.drained.append(done)
        return done

    def _retire_drained(self) -> None:
        for name, one in list(self._live.items()):
            if name is not None and one.drained and not one.lane.has_work:
                self._adapters.remove(name)
                del self._live[name]
                for future in one.drained:
                    future.set_result(None)


def _deliver_all(batch: list[tuple[Deliver, Event]]) -> None:
    for deliver, event in batch:
        deliver(event)
