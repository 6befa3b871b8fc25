"""Pictures of every page for docs/: `python -m bench.dashboard --screenshots FOLDER`.

Each at desktop width, some at phone width and in the dark; as PNG of at most 64 colours, which a page like this does
not miss and which keeps a repository small.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Final

from PIL import Image
from playwright.sync_api import Browser, Page

from bench.dashboard_data import POLICY
from bench.dashboard_stage import Stage

COLOURS: Final = 64
DESKTOP: Final = (1280, 860)
PHONE: Final = (390, 780)
ALSO_DARK: Final = ("overview", "tokens", "training")
ALSO_PHONE: Final = ("overview", "episodes", "episode", "policy")


def take_pictures(browser: Browser, stage: Stage, cookie: str, folder: Path) -> None:
    """One file a look, named for its page."""
    folder.mkdir(parents=True, exist_ok=True)
    filled, root = stage.filled, "/dashboard"
    shown = {
        "overview": root,
        "runs": f"{root}/runs",
        "run": f"{root}/runs/support",
        "groups": f"{root}/groups",
        "group": f"{root}/groups/{filled.group}",
        "episodes": f"{root}/episodes",
        "episode": f"{root}/episodes/{filled.episode}",
        "tokens": f"{root}/episodes/{filled.episode}/tokens",
        "call": f"{root}/episodes/{filled.episode}/calls/{filled.call}",
        "policies": f"{root}/policies",
        "policy": f"{root}/policies/{POLICY}",
        "version": f"{root}/policies/{POLICY}/versions/{filled.num_versions}",
        "rollback": f"{root}/policies/{POLICY}/rollback?version={filled.num_versions - 2}",
        "training": f"{root}/training",
        "step": f"{root}/training/{filled.batch}",
        "engines": f"{root}/engines",
        "keys": f"{root}/keys",
        "audit": f"{root}/audit",
        "settings": f"{root}/settings",
    }
    looks = [(name, path, DESKTOP, False, "") for name, path in shown.items()]
    looks += [(name, shown[name], DESKTOP, True, "-dark") for name in ALSO_DARK]
    looks += [(name, shown[name], PHONE, False, "-phone") for name in ALSO_PHONE]
    for name, path, (width, height), dark, suffix in looks:
        context = browser.new_context(
            base_url=stage.url,
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            device_scale_factor=1,
        )
        context.add_cookies([{"name": "hone_session", "value": cookie, "url": f"{stage.url}/dashboard"}])
        page = context.new_page()
        page.goto(path, wait_until="load")
        _write(page, folder / f"{name}{suffix}.png")
        context.close()
    _sign_in_page(browser, stage, folder)


def _sign_in_page(browser: Browser, stage: Stage, folder: Path) -> None:
    page = browser.new_page(base_url=stage.url, viewport={"width": DESKTOP[0], "height": DESKTOP[1]})
    page.goto("/dashboard/login", wait_until="load")
    _write(page, folder / "login.png")
    page.close()


def _write(page: Page, path: Path) -> None:
    """What is on the screen, in few colours."""
    page.wait_for_load_state("networkidle")  # parts that load by themselves are there
    image = Image.open(io.BytesIO(page.screenshot()))
    image.convert("RGB").quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(
        path, optimize=True
    )
    print(f"{path} {path.stat().st_size // 1024} kB", flush=True)
