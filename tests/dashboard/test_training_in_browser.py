"""Policies, training and steps in a real browser: sound at every width, light and dark, with buttons that do things."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from tests.dashboard.conftest import Look, overflows
from tests.dashboard.stage import Stage

pytestmark = pytest.mark.slow
LOOKS = [(1280, False), (1280, True), (360, False), (360, True)]


@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_every_page_is_sound_and_fits(
    look: Look, stage: Stage, axe: Callable[[Page], None], width: int, dark: bool
) -> None:
    version = stage.told.versions[1]
    for path in (
        "policies",
        "policies/solver",
        f"policies/solver/versions/{version}",
        "policies/solver/versions/0",
        f"policies/solver/rollback?version={version}",
        f"policies/solver/release/shadow?version={version}&share=10",
        "training",
        "training?policy=checker",
        f"training/{stage.told.batches[-1]}",
    ):
        page = look(f"/dashboard/{path}", width=width, dark=dark)
        assert page.get_by_role("heading", level=1).count() == 1, path
        axe(page)
        assert overflows(page) <= 0, path


def test_a_step_is_verified_in_place(look: Look, stage: Stage, axe: Callable[[Page], None]) -> None:
    page = look(f"/dashboard/training/{stage.told.batches[-1]}")
    page.get_by_role("button", name="Verify now").click()
    page.get_by_text("Verified.").wait_for()
    assert page.url.endswith(stage.told.batches[-1])
    axe(page)


def test_one_finds_the_way_from_a_policy_to_a_step_and_its_episodes_by_keyboard(look: Look, stage: Stage) -> None:
    page = look("/dashboard/policies")
    page.get_by_role("link", name="solver").press("Enter")
    page.get_by_role("link", name=f"Step of version {stage.told.versions[-1]}").press("Enter")
    page.get_by_role("heading", level=1, name="Step").wait_for()
    assert page.url.endswith(stage.told.batches[-1])
    assert page.get_by_role("table", name="Trained spans").locator("tbody tr").count() == 4


def test_a_way_back_is_told_before_it_is_gone(look: Look, stage: Stage) -> None:
    first = stage.told.versions[0]
    page = look("/dashboard/policies/solver")
    page.get_by_role("link", name=f"Roll back to version {first}").click()
    page.get_by_role("heading", level=2, name="What will happen").wait_for()
    page.get_by_role("link", name="Leave it as it is").click()
    page.wait_for_url("**/dashboard/policies/solver")


def test_charts_tell_themselves_to_who_cannot_see_them(look: Look) -> None:
    page = look("/dashboard/training")
    reward = page.get_by_role("img", name="Reward").first
    assert "at step" in (reward.locator("desc").text_content() or "")
