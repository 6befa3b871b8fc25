"""The stage, a browser before it, and axe: what every test of a page needs.

A browser belongs to one module: while it is there, Playwright's loop runs in the main thread, and no async test could
have one of its own; so a module with browser tests has no async tests. Where no Chromium is found its tests are
skipped, and the summary of the session says so in one line.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, sync_playwright

from tests.dashboard.stage import Stage, staged

CHROMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
GRAVE = ("serious", "critical")
PATIENCE_MS = 30_000
Look = Callable[..., Page]


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A gateway with stories, for the whole session."""
    with staged(tmp_path_factory.mktemp("stage")) as running:
        yield running


@pytest.fixture
def http(stage: Stage) -> Iterator[Callable[..., httpx.Client]]:
    """Makes a client that is signed in with one of the stage's keys, or with none."""
    clients: list[httpx.Client] = []

    def make(name: str | None = "admin", **options: Any) -> httpx.Client:
        client = httpx.Client(base_url=stage.url, timeout=30, **options)
        clients.append(client)
        if name is not None:
            answer = client.post("/dashboard/login", data={"key": stage.keys.get(name, name)})
            assert answer.status_code == 303, answer.text
        return client

    yield make
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium that this machine has."""
    path = next((found for name in CHROMES if (found := shutil.which(name)) and starts(found)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(CHROMES)} is there and starts")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield launched
        launched.close()


def starts(path: str) -> bool:
    """Whether this is a browser, and no stub that says how to get one."""
    return subprocess.run([path, "--version"], capture_output=True, check=False, timeout=60).returncode == 0


@pytest.fixture
def look(browser: Browser, stage: Stage) -> Iterator[Look]:
    """Opens pages, signed in with one of the stage's keys: `look("/dashboard/runs", key="read", width=360, dark=True)`.

    Fails the test at its end if a page asked another host for anything, raised an error, or broke its own policy.
    """
    contexts: list[BrowserContext] = []
    wrong: list[str] = []

    def noted(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            wrong.append(f"{message.type}: {message.text}")

    def asked(request: Request) -> None:
        if not request.url.startswith((stage.url, "data:")):
            wrong.append(f"asked for {request.url}")

    def opened(path: str, key: str | None = "admin", width: int = 1280, dark: bool = False) -> Page:
        context = browser.new_context(
            base_url=stage.url, viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        if key is not None:
            sign_in(context, stage, key)
        page = context.new_page()
        page.on("console", noted)
        page.on("pageerror", lambda error: wrong.append(f"raised {error}"))
        page.on("request", asked)
        page.goto(path)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not wrong, wrong


def sign_in(context: BrowserContext, stage: Stage, key: str) -> None:
    """Give the browser the cookie of a session."""
    with httpx.Client(base_url=stage.url, timeout=30) as client:
        answer = client.post("/dashboard/login", data={"key": stage.keys.get(key, key)})
        assert answer.status_code == 303, answer.text
        cookie = client.cookies["hone_session"]
    context.add_cookies([{"name": "hone_session", "value": cookie, "url": f"{stage.url}/dashboard"}])


@pytest.fixture
def axe() -> Callable[[Page], None]:
    """Fails where axe-core finds a serious or critical fault on a page as it stands."""
    checker = Axe()

    def check(page: Page) -> None:
        found = checker.run(page).response["violations"]
        grave = [
            f"{item['id']} ({item['impact']}): {item['help']}: {[node['html'][:160] for node in item['nodes'][:4]]}"
            for item in found
            if item["impact"] in GRAVE
        ]
        assert not grave, grave

    return check


def overflows(page: Page) -> int:
    """By how many pixels a page is wider than its window: tables scroll inside, a page never does."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
