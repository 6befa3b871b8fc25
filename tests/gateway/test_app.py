"""`gateway/app.py`: what a bug looks like from outside."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from gateway.app import create_app
from gateway.settings import load


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/episodes/ep-1/timeline"])
async def test_a_bug_is_json_and_the_connection_is_not_used_again(tmp_path: Path, path: str) -> None:
    app = create_app(load({"HONE_POLICIES": "solver=base"}, tmp_path))  # its lifespan never ran: nothing is there
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        answer = await client.get(path)
    assert (answer.status_code, answer.headers["connection"]) == (500, "close")
    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.content)["error"]["message"] == "The gateway failed."
