"""The least a gateway can be: bare ASGI in front, aiohttp behind, bytes passed on; `python -m bench.traffic.bare`.

It checks nothing and keeps nothing. What any other server costs is told as a multiple of this in the same round.
"""

from __future__ import annotations

import argparse

import aiohttp
import uvicorn

from bench.traffic.asgi import Message, Receive, Send, read_body


class PassThrough:
    """The ASGI application."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._session: aiohttp.ClientSession | None = None

    async def __call__(
        self,
        scope: Message,
        receive: Receive,
        send: Send,
    ) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] != "POST":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        body = await read_body(receive)
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        headers = {"content-type": "application/json"}
        async with self._session.post(self._engine + scope["path"], data=body, headers=headers) as response:
            kind = response.headers["content-type"].encode()
            await send({"type": "http.response.start", "status": response.status, "headers": [(b"content-type", kind)]})
            while chunk := await response.content.readany():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engine", required=True)
    options = parser.parse_args()
    app = PassThrough(options.engine)
    uvicorn.run(app, port=options.port, access_log=False, log_level="warning", lifespan="off", backlog=4096)


if __name__ == "__main__":
    main()
