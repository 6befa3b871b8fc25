"""The pages of groups and episodes in a real browser: usable by everybody, at any width, and their actions."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.conftest import Look, overflows, sign_in
from tests.dashboard.stage import Stage

pytestmark = pytest.mark.slow
Check = Callable[[Page], None]
PAGES = (
    "groups",
    "group",
    "skipped group",
    "episodes",
    "episode",
    "open episode",
    "billed episode",
    "call",
    "tokens",
    "receipts",
    "no episode",
)


def path_of(stage: Stage, name: str) -> str:
    told = stage.told
    return {
        "groups": "/dashboard/groups",
        "group": f"/dashboard/groups/{told.trained_groups[0]}",
        "skipped group": f"/dashboard/groups/{told.skipped_group}",
        "episodes": "/dashboard/episodes",
        "episode": f"/dashboard/episodes/{told.tool_episode}",
        "open episode": f"/dashboard/episodes/{told.open_episode}",
        "billed episode": f"/dashboard/episodes/{told.bill_episode}",
        "receipts": f"/dashboard/episodes/{told.tool_episode}/check",
        "no episode": "/dashboard/find?id=nobody",
        "tokens": f"/dashboard/episodes/{told.tool_episode}/tokens?branch=1",
    }[name]


def opened(look: Look, stage: Stage, name: str, **how: object) -> Page:
    if name != "call":
        return look(path_of(stage, name), **how)
    page = look(path_of(stage, "episode"), **how)
    page.get_by_role("link", name="#1", exact=True).first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Call #1")
    return page


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_in_the_way_of_anybody(look: Look, stage: Stage, axe: Check, name: str) -> None:
    for dark, width in ((False, 1280), (True, 1280), (False, 360)):
        page = opened(look, stage, name, dark=dark, width=width)
        if page.locator("#strip[hx-get]").count():
            page.locator("#strip").scroll_into_view_if_needed()
            expect(page.locator("#strip .strip").first).to_be_visible()
        assert page.get_by_role("heading", level=1).count() == 1
        assert overflows(page) <= 0, f"{name} is too wide at {width}"
        axe(page)


def test_a_choice_in_the_filter_changes_the_list_and_the_address(look: Look, stage: Stage) -> None:
    page = look("/dashboard/episodes")
    rows = page.locator("#results tbody tr")
    before = rows.count()
    page.get_by_label("Status or state").select_option("failed")
    expect(rows).to_have_count(1)
    assert "status=failed" in page.url
    page.go_back()
    expect(rows).to_have_count(before)
    page.get_by_label("Task", exact=True).fill("asks an oracle")
    page.get_by_role("button", name="Show").click()
    expect(rows).to_have_count(1)
    page.get_by_role("link", name="Clear").click()
    expect(rows).to_have_count(before)


def test_groups_are_chosen_by_their_state(look: Look, stage: Stage) -> None:
    page = look("/dashboard/groups")
    page.get_by_label("State").select_option("skipped")
    expect(page.locator("#results tbody tr")).to_have_count(1)
    page.get_by_role("link", name="add/too easy").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("add/too easy")
    page.locator("tbody a.id").first.click()
    expect(page).to_have_url(re.compile(r"/dashboard/episodes/ep-"))


def test_tokens_come_when_one_gets_there(look: Look, stage: Stage) -> None:
    page = look(path_of(stage, "episode"))
    strip = page.locator("#strip")
    strip.scroll_into_view_if_needed()
    expect(strip.locator(".t.trained").first).to_be_visible()
    title = strip.locator(".t.trained").first.get_attribute("title") or ""
    assert re.fullmatch(r"token 6, id 201, log-probability -0.100 \(90.5 %\), trained, version 0", title)


def test_receipts_are_verified_on_the_spot(look: Look, stage: Stage) -> None:
    page = look(path_of(stage, "episode"))
    page.get_by_role("link", name="Verify now").click()
    expect(page.locator("#checked")).to_contain_text("Verified. Every one of 5 calls")
    assert page.url.endswith(stage.told.tool_episode)


def test_an_episode_is_deleted_after_a_question(look: Look, stage: Stage, axe: Check) -> None:
    made = stage.run(stage.gateway.open(task="to be deleted"))
    stage.run(stage.gateway.chat(made))
    page = look(f"/dashboard/episodes/{made['episode_id']}")
    page.get_by_role("link", name="Delete", exact=True).click()
    axe(page)
    page.get_by_role("link", name="Keep it").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("to be deleted")
    page.get_by_role("link", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete the episode").click()
    expect(page.get_by_text("This episode was deleted.")).to_be_visible()
    axe(page)


def test_a_reader_is_not_offered_to_delete(look: Look, stage: Stage) -> None:
    page = look(path_of(stage, "episode"), key="read")
    assert page.get_by_role("link", name="Delete", exact=True).count() == 0


def test_everything_can_be_read_and_done_without_a_script(browser: Browser, stage: Stage) -> None:
    context = browser.new_context(base_url=stage.url, java_script_enabled=False)
    sign_in(context, stage, "admin")
    page = context.new_page()
    page.goto("/dashboard/episodes")
    page.get_by_label("Status or state").select_option("failed")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#results tbody tr")).to_have_count(1)
    page.goto(path_of(stage, "episode"))
    page.get_by_role("link", name="On a page of their own").click()
    expect(page.locator(".t.trained").first).to_be_visible()
    page.goto(path_of(stage, "episode"))
    page.get_by_role("link", name="Verify now").click()
    expect(page.locator("#checked")).to_contain_text("Verified.")
    context.close()
