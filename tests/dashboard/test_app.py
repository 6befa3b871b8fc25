"""The dashboard as an application by itself: a bug is a page, and cookies are guarded by the address people use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.responses import Response

from gateway.dashboard.app import HEADERS, Dashboard, belongs_here
from gateway.dashboard.pages.login import begin_session
from gateway.dashboard.session import Sessions
from tests.tracker.databases import Clock
from tracker.types import Key, Scope


async def test_a_bug_is_a_page_with_all_headers_and_the_next_request_works() -> None:
    async def bug() -> None:
        raise ZeroDivisionError

    dashboard = Dashboard()
    dashboard.pages.add_api_route("/dashboard/bug", bug)
    transport = httpx.ASGITransport(dashboard, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://hone") as client:
        answer = await client.get("/dashboard/bug")
        assert (answer.status_code, "<h1>" in answer.text) == (500, True)
        assert "ZeroDivisionError" not in answer.text
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        assert (await client.get("/dashboard/static/hone.css")).status_code == 200


@pytest.mark.parametrize(("base_url", "is_secure"), [("https://hone.example", True), ("http://127.0.0.1:8600", False)])
def test_the_cookie_goes_over_tls_alone_where_people_use_it(base_url: str, is_secure: bool) -> None:
    state = SimpleNamespace(sessions=Sessions(b"s" * 32, Clock()))
    request: Any = SimpleNamespace(app=SimpleNamespace(state=state))
    services: Any = SimpleNamespace(settings=SimpleNamespace(base_url=base_url))
    answer = Response()
    begin_session(answer, request, services, Key(key_id="k", digest="d", scopes=(Scope.READ,)))
    assert ("Secure" in answer.headers["set-cookie"]) == is_secure


@pytest.mark.parametrize(
    ("path", "is_ours"),
    [("/dashboard", True), ("//dashboard/x", True), ("/dashboards", False), ("/v1/dashboard", False), ("/", False)],
)
def test_only_its_own_paths_are_the_dashboards(path: str, is_ours: bool) -> None:
    assert belongs_here(path) == is_ours
