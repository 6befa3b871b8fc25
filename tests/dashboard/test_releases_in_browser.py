"""A trial in a real browser: what a person does about it, by buttons that say what will happen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.dashboard.conftest import overflows, sign_in
from tests.dashboard.stage import Stage, staged
from tests.dashboard.trials import tell_of_a_trial
from tests.fakes.gateways import CANARY
from tracker.trials import TrialState

pytestmark = pytest.mark.slow
PAGE = "/dashboard/policies/solver"


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path, tell_of_a_trial, CANARY) as running:
        yield running


@pytest.fixture
def seen(browser: Browser, trial: Stage) -> Iterator[Page]:
    context = browser.new_context(base_url=trial.url, viewport={"width": 1280, "height": 900})
    sign_in(context, trial, "admin")
    page = context.new_page()
    page.goto(PAGE)
    yield page
    context.close()


def test_a_trial_is_paused_shared_shadowed_and_promoted(seen: Page, trial: Stage, axe: Callable[[Page], None]) -> None:
    axe(seen)
    seen.get_by_role("link", name="Pause").click()
    axe(seen)
    seen.get_by_role("button", name="Pause the trial").click()
    seen.get_by_role("link", name="Resume").click()
    seen.get_by_role("button", name="Resume the trial").click()
    seen.get_by_label("Share, %").fill("20")
    seen.get_by_role("button", name="Change").click()
    seen.get_by_role("button", name="Give it 20 %").click()
    seen.get_by_label("on, %").fill("30")
    seen.get_by_role("button", name="Begin").click()
    seen.get_by_role("button", name="Shadow with").click()
    seen.get_by_text("gets copies of 30 %").wait_for()
    axe(seen)
    seen.get_by_role("link", name="End the shadow").click()
    seen.get_by_role("button", name="End the shadow").click()
    seen.get_by_role("link", name="Promote version 2").click()
    seen.get_by_role("button", name="Promote version 2").click()
    seen.get_by_text("No version is on trial").wait_for()
    (policy,) = trial.run(trial.gateway.ledger.list_policies())
    assert policy.active == 2


def test_a_trial_is_lost_by_going_back_and_fits_a_phone(seen: Page, trial: Stage, axe: Callable[[Page], None]) -> None:
    seen.set_viewport_size({"width": 360, "height": 800})
    axe(seen)
    assert overflows(seen) <= 0
    seen.get_by_role("region", name="Release").get_by_role("link", name="Roll back to version 1").click()
    seen.get_by_role("button", name="Roll back to version 1").click()
    seen.get_by_text("No version is on trial").wait_for()
    ended = trial.run(trial.gateway.ledger.find_trial("solver", 2))
    assert ended is not None
    assert ended.state is TrialState.ROLLED_BACK
