"""Overview, runs, engines, keys, audit log and settings in a real browser: sound, readable on a phone, and alive."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.dashboard.conftest import Look, overflows
from tests.dashboard.stage import Stage
from tests.dashboard.stories import RUN
from tracker.drift import Alarm, AlarmKind
from tracker.types import Scope

pytestmark = pytest.mark.slow
PAGES = (
    "/dashboard",
    "/dashboard/runs",
    f"/dashboard/runs/{RUN}",
    "/dashboard/engines",
    "/dashboard/keys",
    "/dashboard/keys/new",
    "/dashboard/audit",
    "/dashboard/settings",
)
LIVE_MS = 20_000
"""Longer than any part of a page waits before it asks again."""


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (360, False), (360, True)])
def test_every_page_is_sound_and_fits(look: Look, axe: Callable[[Page], None], width: int, dark: bool) -> None:
    page = look(PAGES[0], width=width, dark=dark)
    for path in PAGES:
        page.goto(path)
        axe(page)
        assert overflows(page) <= 0, path


def test_the_overview_shows_the_run_and_the_threshold_that_are_chosen(look: Look) -> None:
    page = look("/dashboard")
    expect(page.get_by_text("better, beyond both intervals")).to_be_visible()
    page.get_by_text("The numbers of each version").first.click()
    rows = page.get_by_role("region", name="Outcomes of solver").get_by_role("row")
    expect(rows.nth(1)).to_contain_text("0.922")
    page.get_by_label("Success from reward").fill("0.95")
    page.get_by_label("Run", exact=True).select_option("held-out")
    page.get_by_role("button", name="Show").click()
    expect(page).to_have_url(re.compile(r"run=held-out&success=0\.95"))
    expect(page.get_by_text("nothing to compare yet")).to_be_visible()


def test_the_overview_shows_the_alarms_of_its_tenant(http: Callable[..., httpx.Client], stage: Stage) -> None:
    alarms = [
        Alarm(tenant=tenant, run=RUN, policy="solver", kind=AlarmKind.LENGTH, detail=f"longer and longer in {tenant}")
        for tenant in ("default", "other")
    ]
    client = http("read")
    for _ in range(5):  # the gateway's own look at rewards takes back what it does not find itself
        stage.run(stage.gateway.ledger.put_alarms(alarms, 1))
        if "longer and longer" in (text := client.get("/dashboard").text):
            break
    assert "longer and longer in default" in text
    assert "in other" not in text


def test_a_run_shows_what_its_groups_wait_for_and_goes_on_by_itself(look: Look, stage: Stage) -> None:
    page = look(f"/dashboard/runs/{RUN}")
    expect(page.get_by_role("region", name="Skipped groups")).to_contain_text("no variance")
    waiting = page.get_by_role("region", name="Open groups", exact=True)
    expect(waiting).to_contain_text("1 of 4 scored")
    stage.run(stage.gateway.open(task="add/new while somebody looks", run=RUN))
    expect(waiting).to_contain_text("add/new while somebody looks", timeout=LIVE_MS)


def test_engines_show_what_they_have_loaded(look: Look, stage: Stage) -> None:
    page = look("/dashboard/engines")
    row = page.get_by_role("row").nth(1)
    expect(row).to_contain_text(stage.engine.url)
    expect(row).to_contain_text("ready")
    expect(row.get_by_role("link", name=f"solver@{stage.told.versions[-1]} active")).to_be_visible()


def test_a_key_is_made_limited_rotated_and_revoked(look: Look, stage: Stage, axe: Callable[[Page], None]) -> None:
    page = look("/dashboard/keys")
    page.get_by_role("link", name="New key").click()
    page.get_by_role("button", name="Make key").click()
    expect(page.get_by_role("alert")).to_contain_text("Give the key a scope")
    axe(page)
    page.get_by_label("read", exact=True).check()
    page.get_by_label("Label").fill("made in a browser")
    page.get_by_label("Tokens in all").fill("1000")
    page.get_by_role("button", name="Make key").click()
    secret = page.get_by_label("Key", exact=True).input_value()
    axe(page)
    assert works(stage, secret)
    page.get_by_role("link", name="Done").click()
    page.get_by_label("Calls at once").fill("4")
    page.get_by_role("button", name="Save limits").click()
    expect(page.get_by_label("Calls at once")).to_have_value("4")
    axe(page)
    page.get_by_role("button", name="Rotate key").click()
    rotated = page.get_by_label("Key", exact=True).input_value()
    assert (works(stage, secret), works(stage, rotated)) == (False, True)
    page.get_by_role("link", name="Done").click()
    page.get_by_text("Make this key good for nothing").click()
    axe(page)
    page.get_by_role("button", name="Revoke key").click()
    expect(page.get_by_text("revoked", exact=True)).to_be_visible()
    assert not works(stage, rotated)
    page.goto("/dashboard/audit")
    for act in ("key.create", "key.limit", "key.rotate", "key.revoke"):
        expect(page.get_by_text(act, exact=True).first).to_be_visible()
    page.get_by_text("Detail", exact=True).first.click()
    axe(page)


def works(stage: Stage, key: str) -> bool:
    return httpx.get(f"{stage.url}/v1/runs", headers={"x-api-key": key}).status_code == 200


def test_the_audit_log_is_paged(look: Look, stage: Stage) -> None:
    async def act_often() -> None:
        for number in range(60):
            body = {"run": f"run-{number:03d}"}
            (await stage.gateway.admin.post("/v1/runs", json=body)).raise_for_status()

    stage.run(act_often())
    page = look("/dashboard/audit")
    expect(page.get_by_role("cell", name="run-059", exact=True)).to_be_visible()
    expect(page.get_by_role("cell", name="run-000", exact=True)).to_have_count(0)
    page.get_by_role("link", name="Next page").click()
    expect(page.get_by_role("cell", name="run-000", exact=True)).to_be_visible()
    page.get_by_role("link", name="First page").click()
    expect(page.get_by_role("cell", name="run-059", exact=True)).to_be_visible()


def test_settings_and_labels_are_text_whatever_they_hold(look: Look, stage: Stage) -> None:
    evil = '<img src=x onerror="document.title=1"><script>document.title=1</script>'
    _, key_id = stage.key(Scope.AGENT, label=evil)
    page = look("/dashboard/keys")
    expect(page.get_by_role("link", name=evil)).to_be_visible()
    page.goto(f"/dashboard/keys/{key_id}")
    expect(page.get_by_role("heading", level=1)).to_contain_text(evil)
    expect(page).to_have_title(f"Key {evil} · Hone")
    assert page.locator("main img, main script").count() == 0


def test_a_reader_finds_neither_acts_nor_the_pages_of_administrators(look: Look) -> None:
    page = look("/dashboard/keys", key="read")
    expect(page.get_by_role("link", name="New key")).to_have_count(0)
    for name in ("Audit", "Settings"):
        expect(page.get_by_role("link", name=name, exact=True)).to_have_count(0)
    page.goto("/dashboard/settings")
    expect(page.get_by_role("heading", level=1)).to_have_text("Not allowed")


def test_a_page_is_reached_and_left_by_keyboard_alone(look: Look) -> None:
    page = look("/dashboard")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_label("Run", exact=True)).to_be_focused()
