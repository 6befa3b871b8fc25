"""A version on trial, and what a person may do about it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

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
def admin(trial: Stage) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=trial.url, timeout=30) as client:
        assert client.post("/dashboard/login", data={"key": trial.keys["admin"]}).status_code == 303
        yield client


def done(admin: httpx.Client, act: str, **fields: str) -> httpx.Response:
    """The page that asks, and its button."""
    asked = admin.get(f"{PAGE}/release/{act}", params=fields)
    assert asked.status_code == 200, asked.text
    assert "What will happen" in asked.text
    csrf = asked.text.partition('name="csrf" value="')[2].partition('"')[0]
    return admin.post(f"{PAGE}/release/{act}", data={**fields, "csrf": csrf})


def state_of(trial: Stage, version: int = 2) -> TrialState | None:
    found = trial.run(trial.gateway.ledger.find_trial("solver", version))
    return None if found is None else found.state


def test_a_trial_is_shown_and_a_person_pauses_resumes_shares_and_promotes(trial: Stage, admin: httpx.Client) -> None:
    text = admin.get(PAGE).text
    assert "Version 2 is on trial against version 1" in text
    assert "It is better" in text
    assert done(admin, "pause").status_code == 303
    assert state_of(trial) is TrialState.PAUSED
    assert "Resume" in admin.get(PAGE).text
    assert done(admin, "resume").status_code == 303
    assert state_of(trial) is TrialState.RUNNING
    assert done(admin, "share", version="2", share="20").status_code == 303
    assert [one.share for one in trial.run(trial.gateway.ledger.open_trials())] == [0.2]
    assert done(admin, "promote", version="2").headers["location"] == f"{PAGE}#release"
    assert state_of(trial) is TrialState.PROMOTED
    acts, _ = trial.run(trial.gateway.ledger.list_acts("default", 20, None))
    told = [act.act for act in reversed(acts) if act.act.startswith("release.")]
    assert told == ["release.promote", "release.pause", "release.resume", "release.share", "release.promote"]
    assert "What was decided" in admin.get(PAGE).text


def test_going_back_to_stable_ends_the_trial(trial: Stage, admin: httpx.Client) -> None:
    asked = admin.get(f"{PAGE}/rollback?version=1").text
    assert "what is on trial against it has lost" in asked
    csrf = asked.partition('name="csrf" value="')[2].partition('"')[0]
    assert admin.post(f"{PAGE}/rollback", data={"version": "1", "csrf": csrf}).status_code == 303
    assert state_of(trial) is TrialState.ROLLED_BACK
    assert "No version is on trial" in admin.get(PAGE).text


def test_there_is_no_way_back_to_a_version_on_trial(trial: Stage, admin: httpx.Client) -> None:
    assert "Roll back to version 2" not in admin.get(PAGE).text
    asked = admin.get(f"{PAGE}/rollback?version=2").text
    assert "newer than the active version" in asked
    csrf = asked.partition('name="csrf" value="')[2].partition('"')[0]
    assert admin.post(f"{PAGE}/rollback", data={"version": "2", "csrf": csrf}).status_code == 409
    assert state_of(trial) is TrialState.RUNNING


def test_a_shadow_is_begun_and_ended(trial: Stage, admin: httpx.Client) -> None:
    assert done(admin, "shadow", version="1", share="25").status_code == 303
    (shadow,) = trial.run(trial.gateway.ledger.list_shadows())
    assert (shadow.version, shadow.share) == (1, 0.25)
    assert "gets copies of 25 % of the calls" in admin.get(PAGE).text
    assert done(admin, "end-shadow").status_code == 303
    assert trial.run(trial.gateway.ledger.list_shadows()) == []


def test_what_cannot_be_is_refused_and_a_reader_changes_nothing(trial: Stage, admin: httpx.Client) -> None:
    for act, fields in (
        ("promote", {"version": "x"}),
        ("share", {"version": "2", "share": "nan"}),
        ("share", {"version": "2", "share": "96"}),
        ("shadow", {"version": "1", "share": "0"}),
        ("explode", {}),
    ):
        assert admin.get(f"{PAGE}/release/{act}", params=fields).status_code == 400, act
    assert admin.post(f"{PAGE}/release/pause", data={}).status_code == 403  # without a token
    assert done(admin, "promote", version="1").status_code == 409
    assert admin.get("/dashboard/policies/nobody/release/pause").status_code == 404
    asked = admin.get(f"{PAGE}/release/end-shadow")
    assert (asked.status_code, "No version of solver is a shadow." in asked.text) == (409, True)
    with httpx.Client(base_url=trial.url, timeout=30) as reader:
        reader.post("/dashboard/login", data={"key": trial.keys["read"]})
        assert reader.get(f"{PAGE}/release/pause").status_code == 403
        assert "Promote" not in reader.get(PAGE).text
    assert state_of(trial) is TrialState.RUNNING
