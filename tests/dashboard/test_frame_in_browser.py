"""Signing in and moving about, in a real browser."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from tests.dashboard.conftest import Look, overflows
from tests.dashboard.stage import Stage

pytestmark = pytest.mark.slow


def test_a_key_signs_in_and_signs_out(look: Look, stage: Stage, axe: Callable[[Page], None]) -> None:
    page = look("/dashboard", key=None)
    assert page.url == f"{stage.url}/dashboard/login"
    axe(page)
    page.get_by_label("API key").fill("no key at all")
    page.get_by_role("button", name="Sign in").click()
    assert "not valid" in page.get_by_role("alert").inner_text()
    axe(page)
    page.get_by_label("API key").fill(stage.keys["read"])
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", level=1, name="Overview").wait_for()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("heading", level=1, name="Sign in").wait_for()
    page.goto("/dashboard")
    assert page.url == f"{stage.url}/dashboard/login"


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (360, False), (360, True)])
def test_the_frame_is_sound_and_fits(look: Look, axe: Callable[[Page], None], width: int, dark: bool) -> None:
    for path in ("/dashboard", "/dashboard/none"):
        page = look(path, width=width, dark=dark)
        axe(page)
        assert overflows(page) <= 0


def test_the_menu_opens_at_phone_width_by_keyboard(look: Look) -> None:
    page = look("/dashboard", width=360)
    link = page.get_by_role("link", name="Episodes", exact=True)
    assert not link.is_visible()
    page.get_by_role("button", name="Menu").press("Enter")
    assert link.is_visible()
    page.get_by_role("button", name="Menu").press("Enter")
    assert not link.is_visible()
