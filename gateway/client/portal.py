"""A loop in a thread of its own, for who is not async: one implementation serves both, also in a notebook.

Any thread may call in. A call that is interrupted (Ctrl-C) is cancelled in the loop, and goes on once that has cleaned
up. What is handed in belongs to the loop: the loop alone touches the connections.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from concurrent.futures import CancelledError, Future, wait
from functools import partial
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")
END: Final = object()


class Portal:
    """The loop; it runs until `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hone-client", daemon=True)
        self._thread.start()
        self._running: dict[Future[Any], asyncio.Task[Any]] = {}
        self._is_open = True
        self._opening = threading.Lock()

    @property
    def is_inside(self) -> bool:
        """Whether whoever asks runs in the loop; then he cannot wait for it."""
        return threading.current_thread() is self._thread

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do this in the loop, and wait for it."""
        if self.is_inside:
            work.close()
            raise RuntimeError("The client's own loop cannot wait for itself: use AsyncHone where you are async.")
        asked: Future[T] = Future()
        with self._opening:  # what is begun before the end is ended by it; nothing is begun after
            is_open = self._is_open
            if is_open:
                self._loop.call_soon_threadsafe(self._begin, work, asked)
        if not is_open:
            work.close()
            raise RuntimeError("This client is closed: make another `Hone()`.")
        try:
            return asked.result()
        except BaseException:
            if not asked.done():
                self._loop.call_soon_threadsafe(self._interrupt, asked)
                wait([asked])
            raise

    def _begin(self, work: Coroutine[Any, Any, T], asked: Future[T]) -> None:
        task = self._running[asked] = self._loop.create_task(work)
        task.add_done_callback(partial(self._end, asked))

    def _interrupt(self, asked: Future[Any]) -> None:
        if asked in self._running:
            self._running[asked].cancel()

    def _end(self, asked: Future[T], task: asyncio.Task[T]) -> None:
        del self._running[asked]
        error = CancelledError() if task.cancelled() else task.exception()
        if error is None:
            asked.set_result(task.result())
        else:
            asked.set_exception(error)

    def each(self, items: AsyncGenerator[T], owner: object) -> Generator[T]:
        """Go through a generator in the loop; it is closed when this one is, and `owner` is not let go before."""
        try:
            while (item := self.call(_next(items))) is not END:
                yield cast("T", item)
        finally:
            if self._is_open and not self.is_inside:  # nor where the collector, in whatever thread, lets it go
                self.call(_close(items))
            del owner

    def close(self) -> None:
        """End what still runs, and the thread."""
        with self._opening:
            was_open, self._is_open = self._is_open, False
        if was_open:
            asyncio.run_coroutine_threadsafe(_end_the_others(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _next(items: AsyncGenerator[T]) -> T | object:
    return await anext(items, END)


async def _close(items: AsyncGenerator[Any]) -> None:
    await items.aclose()


async def _end_the_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
