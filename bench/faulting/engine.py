"""The scripted engine of `gateway/scripted`, at the pace of a model: `python -m bench.faulting.engine PORT PAUSE_S`.

An answer takes its time before its first byte and between two events, so that a fault finds calls in flight and streams
in their middle. What is answered is left as it is.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvicorn

from gateway.encoding import load_encoding
from gateway.scripted.engine import create_scripted_engine

MODEL = "base"


class Paced:
    """Waits before each part of an answer that is generated."""

    def __init__(self, app: Any, pause_s: float) -> None:
        self._app = app
        self._pause_s = pause_s

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def slowly(message: Any) -> None:
            await asyncio.sleep(self._pause_s)
            await send(message)

        is_generated = scope["type"] == "http" and scope["path"].endswith("chat/completions")
        await self._app(scope, receive, slowly if is_generated else send)


def main() -> None:
    app = create_scripted_engine([MODEL], load_encoding())
    uvicorn.run(Paced(app, float(sys.argv[2])), host="127.0.0.1", port=int(sys.argv[1]), log_level="error")


if __name__ == "__main__":
    main()
