"""What a page says when the gateway refuses it or is gone, in a real browser: it must not look alive when it is not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.dashboard.conftest import overflows, sign_in
from tests.dashboard.stage import Stage
from tracker.types import Scope

pytestmark = pytest.mark.slow
LIVE_MS = 20_000
"""Longer than any part of a page waits before it asks again."""


@pytest.fixture
def seen(browser: Browser, stage: Stage) -> Iterator[Page]:
    """A page whose console may complain: that something failed is what it is about."""
    context = browser.new_context(base_url=stage.url, viewport={"width": 360, "height": 800})
    sign_in(context, stage, "admin")
    yield context.new_page()
    context.close()


def test_a_live_page_says_that_nobody_answers_until_somebody_does(seen: Page, axe: Callable[[Page], None]) -> None:
    def gone(route: Route) -> None:
        route.abort()

    seen.goto("/dashboard")
    notice = seen.locator("#notice")
    expect(notice).to_be_hidden()
    seen.route("**/dashboard*", gone)
    expect(notice).to_contain_text("The gateway does not answer. What is shown here is of", timeout=LIVE_MS)
    axe(seen)
    assert overflows(seen) <= 0
    seen.unroute("**/dashboard*", gone)
    expect(notice).to_be_hidden(timeout=LIVE_MS)


def test_a_filter_that_is_refused_says_why_and_goes_on_when_it_is_mended(
    seen: Page, axe: Callable[[Page], None]
) -> None:
    seen.goto("/dashboard/episodes")
    seen.get_by_label("Reward from").fill("lots")
    seen.get_by_label("Reward from").press("Enter")
    notice = seen.locator("#notice")
    expect(notice).to_have_text("That was not understood: min_reward is a finite number.")
    axe(seen)
    seen.get_by_label("Reward from").fill("0.5")
    seen.get_by_label("Reward from").press("Enter")
    expect(notice).to_be_hidden()
    expect(seen).to_have_url(re.compile(r"/dashboard/episodes\?min_reward=0\.5$"))


def test_what_is_unfolded_stays_so_while_the_page_goes_on(seen: Page) -> None:
    seen.goto("/dashboard")
    seen.get_by_text("The numbers of each version").first.click()
    seen.get_by_role("heading", level=1).click()
    with seen.expect_response(re.compile("success="), timeout=LIVE_MS):
        seen.evaluate("document.querySelector('#learning .card').dataset.before = 'yes'")
    expect(seen.locator("#learning [data-before]")).to_have_count(0)
    expect(seen.get_by_role("region", name="Outcomes of solver")).to_be_visible()


def test_a_key_that_is_revoked_meanwhile_leads_to_the_sign_in_page_and_back(browser: Browser, stage: Stage) -> None:
    key, key_id = stage.key(Scope.READ, label="leaves today")
    context = browser.new_context(base_url=stage.url)
    page = context.new_page()
    page.goto("/dashboard/episodes?task=add")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", level=1, name="Episodes").wait_for()
    stage.run(stage.gateway.admin.delete(f"/v1/keys/{key_id}"))
    page.get_by_label("Status or state").select_option("ok")
    page.get_by_role("heading", level=1, name="Sign in").wait_for()
    page.get_by_label("API key").fill(stage.keys["read"])
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("heading", level=1, name="Episodes").wait_for()
    context.close()


def test_going_back_after_an_act_shows_what_is_and_a_stale_form_is_refused(seen: Page, stage: Stage) -> None:
    _, key_id = stage.key(Scope.AGENT, label="revoked in two tabs")
    other = seen.context.new_page()
    for tab in (seen, other):
        tab.goto(f"/dashboard/keys/{key_id}")
        tab.get_by_text("Make this key good for nothing").click()
    seen.get_by_role("button", name="Revoke key").click()
    expect(seen.get_by_text("revoked", exact=True)).to_be_visible()
    other.get_by_role("button", name="Revoke key").click()
    expect(other.get_by_text("revoked", exact=True)).to_be_visible()
    seen.go_back()
    expect(seen.get_by_text("revoked", exact=True)).to_be_visible()
    seen.goto("/dashboard/keys/new")
    seen.evaluate("document.querySelector('main input[name=csrf]').value = 'of another session'")
    seen.get_by_label("read", exact=True).check()
    seen.get_by_role("button", name="Make key").click()
    expect(seen.get_by_role("heading", level=1)).to_have_text("Not allowed")
