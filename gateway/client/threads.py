"""Functions of the driver's, called from the client's loop: each in a thread of its own, so that it may block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

R = TypeVar("R")


async def in_thread(work: Callable[[], R]) -> R:
    """What the function returns or raises.

    Nobody waits for the thread when the program ends: it may be deep in a long call. What no future carries
    (`StopIteration`, as in PEP 479) or what would end the loop (`sys.exit`, which ends no program from a thread) is
    told as a `RuntimeError` from it.
    """
    told: Future[R] = Future()
    threading.Thread(target=_do, args=(work, told), name="hone-driver", daemon=True).start()
    return await asyncio.wrap_future(told)


def _do(work: Callable[[], R], told: Future[R]) -> None:
    told.set_running_or_notify_cancel()
    try:
        value = work()
    except BaseException as error:  # noqa: BLE001 - it is told, whatever it is
        if not isinstance(error, Exception) or isinstance(error, StopIteration):
            wrapped = RuntimeError(f"{error!r} was raised.")
            wrapped.__cause__ = error
            error = wrapped
        told.set_exception(error)
    else:
        told.set_result(value)
