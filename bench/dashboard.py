"""How fast the dashboard is: `python -m bench.dashboard` prints a table and writes bench/results/dashboard.json.

Every page of a real gateway (`dashboard_stage.py`) over 20,000 episodes and one episode of 300 calls. `server_ms` is
the median time from request to the whole page, of a client on the same machine; `browser_ms` the median from navigation
to `load` in Chromium, styles and scripts from its cache; `axe_serious` how many rules of axe-core a page breaks
seriously or critically, light and dark, at desktop and phone width. It ends with an error where a page takes longer
than it may, or breaks a rule.

    python -m bench.dashboard --data FOLDER                     keep what is filled, for the next time
    python -m bench.dashboard --screenshots docs/images/dashboard   take pictures of every page instead
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from bench.dashboard_data import NUM_EPISODES, POLICY
from bench.dashboard_pictures import take_pictures
from bench.dashboard_stage import Stage, staged

RESULTS: Final = Path(__file__).parent / "results" / "dashboard.json"
MAX_SERVER_MS: Final = 150.0
REPEATS: Final = 9
LOADS: Final = 3
GRAVE: Final = ("serious", "critical")
CHROMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS: Final = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
PICTURED: Final = 2_560
"""Episodes in pictures: as many as a reader can take in."""
LOOKS: Final = ((1280, False), (1280, True), (360, False), (360, True))
"""(width, dark)."""


def pages(stage: Stage) -> dict[str, str]:
    """Every page, and lists with each filter and far from their beginning."""
    filled, root = stage.filled, "/dashboard"
    with signed_in(stage) as http:
        far = _far_page(http, f"{root}/episodes")
    return {
        "overview": root,
        "runs": f"{root}/runs",
        "run": f"{root}/runs/support",
        "groups": f"{root}/groups",
        "groups, filtered": f"{root}/groups?run=support&state=skipped",
        "group": f"{root}/groups/{filled.group}",
        "episodes": f"{root}/episodes",
        "episodes, by reward": f"{root}/episodes?min_reward=0.9",
        "episodes, by version": f"{root}/episodes?policy={POLICY}&version={max(1, filled.num_versions - 5)}",
        "episodes, by role": f"{root}/episodes?role=explore",
        "episodes, by all": f"{root}/episodes?run=support&status=ok&policy={POLICY}&role=main&min_reward=0.5",
        "episodes, a far page": far,
        "episode": f"{root}/episodes/{filled.episode}",
        "episode, its tokens": f"{root}/episodes/{filled.episode}/tokens",
        "episode, a call": f"{root}/episodes/{filled.episode}/calls/{filled.call}",
        "episode, its receipts": f"{root}/episodes/{filled.episode}/check",
        "300 calls": f"{root}/episodes/{filled.long_episode}",
        "300 calls, its tokens": f"{root}/episodes/{filled.long_episode}/tokens",
        "policies": f"{root}/policies",
        "policy": f"{root}/policies/{POLICY}",
        "version": f"{root}/policies/{POLICY}/versions/{filled.num_versions}",
        "roll back": f"{root}/policies/{POLICY}/rollback?version={max(1, filled.num_versions - 1)}",
        "training": f"{root}/training",
        "step": f"{root}/training/{filled.batch}",
        "engines": f"{root}/engines",
        "keys": f"{root}/keys",
        "a new key": f"{root}/keys/new",
        "audit": f"{root}/audit",
        "settings": f"{root}/settings",
    }


@contextmanager
def signed_in(stage: Stage) -> Iterator[httpx.Client]:
    """A client with a session."""
    with httpx.Client(base_url=stage.url, timeout=60) as http:
        answer = http.post("/dashboard/login", data={"key": stage.key})
        if answer.status_code != 303:
            raise RuntimeError(f"nobody can sign in: {answer.status_code}")
        yield http


def _far_page(http: httpx.Client, path: str, turns: int = 20) -> str:
    """A list's page after so many turns, by its own links."""
    for _ in range(turns):
        found = http.get(path).text.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
        if not found:
            return path
        path = found
    return path


def server_ms(http: httpx.Client, path: str) -> float:
    """The median of several requests; the first one is for whatever has to be read from the disk."""
    took: list[float] = []
    for place in range(REPEATS + 1):
        began = time.perf_counter()
        answer = http.get(path)
        if answer.status_code != 200:
            raise RuntimeError(f"{path}: {answer.status_code}")
        if place:
            took.append(1000 * (time.perf_counter() - began))
    return statistics.median(took)


def browser_ms(context: BrowserContext, path: str) -> float:
    """The median from navigation to load."""
    page = context.new_page()
    took: list[float] = []
    for _ in range(LOADS):
        page.goto(path, wait_until="load")
        took.append(
            page.evaluate("() => { const [n] = performance.getEntriesByType('navigation'); return n.loadEventStart; }")
        )
    page.close()
    return statistics.median(took)


def axe_serious(browser: Browser, stage: Stage, path: str, cookie: str) -> int:
    """How many rules are broken, in whichever look."""
    broken: set[str] = set()
    for width, dark in LOOKS:
        with context_of(browser, stage, cookie, width, dark) as context:
            page = context.new_page()
            page.goto(path, wait_until="load")
            found = Axe().run(page).response["violations"]
            for item in (item for item in found if item["impact"] in GRAVE):
                broken.add(item["id"])
                print(
                    f"  {path} {width} {'dark' if dark else 'light'}: {item['id']}: "
                    f"{[node['html'][:120] for node in item['nodes'][:3]]}",
                    file=sys.stderr,
                )
    return len(broken)


@contextmanager
def context_of(browser: Browser, stage: Stage, cookie: str, width: int, dark: bool) -> Iterator[BrowserContext]:
    """A browser window of this width that is signed in."""
    scheme = "dark" if dark else "light"
    context = browser.new_context(
        base_url=stage.url, viewport={"width": width, "height": 900}, color_scheme=scheme, device_scale_factor=1
    )
    context.set_default_timeout(60_000)
    context.add_cookies([{"name": "hone_session", "value": cookie, "url": f"{stage.url}/dashboard"}])
    try:
        yield context
    finally:
        context.close()


@contextmanager
def chromium() -> Iterator[Browser]:
    """The Chromium of this machine."""
    path = next((found for name in CHROMES if (found := shutil.which(name))), None)
    if path is None:
        raise SystemExit(f"no browser: none of {', '.join(CHROMES)} is there")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


def measure(stage: Stage, only: str | None) -> list[dict[str, Any]]:
    """A row a page."""
    rows: list[dict[str, Any]] = []
    asked = {name: path for name, path in pages(stage).items() if only is None or only in name}
    with signed_in(stage) as http, chromium() as browser:
        cookie = http.cookies["hone_session"]
        for name, path in asked.items():
            row: dict[str, Any] = {"page": name, "server_ms": round(server_ms(http, path), 1)}
            with context_of(browser, stage, cookie, 1280, False) as context:
                row["browser_ms"] = round(browser_ms(context, path), 1)
            row["axe_serious"] = axe_serious(browser, stage, path, cookie)
            rows.append(row)
            print(f"{name:26}{row['server_ms']:10.1f}{row['browser_ms']:12.1f}{row['axe_serious']:12}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a data folder to fill, or one that was filled before")
    parser.add_argument("--episodes", type=int, help=f"how many ({NUM_EPISODES}; for pictures {PICTURED})")
    parser.add_argument("--only", help="pages whose name has this in it; nothing is written")
    parser.add_argument("--screenshots", type=Path, metavar="FOLDER", help="take pictures of every page")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        number = given.episodes or (PICTURED if given.screenshots else NUM_EPISODES)
        with staged(given.data or Path(folder), number) as stage:
            if given.screenshots:
                with chromium() as browser, signed_in(stage) as http:
                    take_pictures(browser, stage, http.cookies["hone_session"], given.screenshots)
                return
            print(f"{'page':26}{'server_ms':>10}{'browser_ms':>12}{'axe_serious':>12}")
            rows = measure(stage, given.only)
    if given.only is None:
        _write(rows, number)
    slow = [row["page"] for row in rows if row["server_ms"] > MAX_SERVER_MS]
    faulty = [row["page"] for row in rows if row["axe_serious"]]
    if slow or faulty:
        sys.exit(f"slower than {MAX_SERVER_MS:.0f} ms: {slow or 'none'}; rules broken on: {faulty or 'none'}")


def _write(rows: list[dict[str, Any]], num_episodes: int) -> None:
    told = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.platform(),
        "command": "python -m bench.dashboard",
        "num_episodes": num_episodes,
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
