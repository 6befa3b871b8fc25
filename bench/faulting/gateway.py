"""`hone gateway` with a clock that the bench turns: `python -m bench.faulting.gateway OFFSET_FILE`.

Everything is the product's own; only the clock that is passed in adds what stands in the file, in milliseconds, to the
machine's time. So the clock jumps for every part of the gateway at once, forwards and back, while it runs.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import uvicorn

from gateway.app import create_app
from gateway.settings import load

LOOK_S = 0.05


class TurnedClock:
    """The machine's clock and what a file says beside it."""

    def __init__(self, offset: Path) -> None:
        self._offset = offset
        self._offset_ms = 0
        self._look_at = 0.0

    def now_ms(self) -> int:
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            self._offset_ms = int(self._offset.read_text() or 0)
        return time.time_ns() // 1_000_000 + self._offset_ms


def main() -> None:
    settings = load(os.environ, Path.cwd())
    app = create_app(settings, TurnedClock(Path(sys.argv[1])))
    uvicorn.run(app, host=settings.host, port=settings.port, lifespan="on", ws="none", access_log=False)


if __name__ == "__main__":
    main()
