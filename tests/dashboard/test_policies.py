"""Policies, their versions, and the way back to one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.dashboard.stage import Stage, staged

pytestmark = pytest.mark.slow
Signed = Callable[..., httpx.Client]


@pytest.fixture
def own_stage(tmp_path: Path) -> Iterator[Stage]:
    """A stage that a test may spoil."""
    with staged(tmp_path) as running:
        yield running


@pytest.fixture
def admin(own_stage: Stage) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=own_stage.url, timeout=30) as client:
        assert client.post("/dashboard/login", data={"key": own_stage.keys["admin"]}).status_code == 303
        yield client


def csrf_of(client: httpx.Client, path: str) -> str:
    return client.get(path).text.partition('name="csrf" value="')[2].partition('"')[0]


def test_every_policy_is_listed_with_its_active_version(http: Signed, stage: Stage) -> None:
    text = http("read").get("/dashboard/policies").text
    assert f"/dashboard/policies/solver/versions/{stage.told.versions[-1]}" in text
    assert "/dashboard/policies/checker" in text
    assert "base model" in text


def test_a_policy_shows_its_versions_newest_first_with_the_reward_of_each(http: Signed, stage: Stage) -> None:
    stage.run(stage.gateway.ledger.score_episodes())
    text = http("read").get("/dashboard/policies/solver").text
    places = [text.index(f"/versions/{version}") for version in reversed(stage.told.versions)]
    assert places == sorted(places)
    assert "Reward by version of solver" in text
    assert "Roll back to" not in text
    of_run = http("read").get("/dashboard/policies/solver?run=sums").text
    assert '<option value="sums" selected>' in of_run


def test_only_an_administrator_is_offered_to_roll_back(http: Signed, stage: Stage) -> None:
    first = stage.told.versions[0]
    assert f"/rollback?version={first}" in http("admin").get("/dashboard/policies/solver").text
    assert http("read").get(f"/dashboard/policies/solver/rollback?version={first}").status_code == 403


def test_rewards_and_lineage_are_told_to_their_tenant_only(http: Signed, stage: Stage) -> None:
    stage.run(stage.gateway.ledger.score_episodes())
    version = stage.told.versions[-1]
    own = http("read").get(f"/dashboard/policies/solver/versions/{version}").text
    foreign = http("other").get(f"/dashboard/policies/solver/versions/{version}").text
    lineage, _ = stage.run(stage.gateway.ledger.version_lineage("default", "solver", version, 10, None))
    for episode in lineage[0].episodes:
        assert episode.episode_id in own
        assert episode.episode_id not in foreign
    assert "of other tenants" in foreign


def test_what_is_none_is_not_found(http: Signed) -> None:
    client = http("admin")
    for path in ("nobody", "solver/versions/99", "solver/rollback?version=99", "nobody/rollback?version=0"):
        assert client.get(f"/dashboard/policies/{path}").status_code == 404, path


def test_rolling_back_says_what_will_happen_does_it_and_is_audited(own_stage: Stage, admin: httpx.Client) -> None:
    first, *_, last = own_stage.told.versions
    path = f"/dashboard/policies/solver/rollback?version={first}"
    text = admin.get(path).text
    assert f"in place of version {last}" in text
    assert "are withdrawn" in text
    target = "/dashboard/policies/solver/rollback"
    assert admin.post(target, data={"version": str(first)}).status_code == 403  # without its token
    assert admin.post(target, data={"version": "x", "csrf": csrf_of(admin, path)}).status_code == 400
    done = admin.post(target, data={"version": str(first), "csrf": csrf_of(admin, path)})
    assert (done.status_code, done.headers["location"]) == (303, "/dashboard/policies/solver")
    (policy,) = [one for one in own_stage.run(own_stage.gateway.ledger.list_policies()) if one.policy == "solver"]
    assert (policy.active, policy.epoch) == (first, 1)
    acts, _ = own_stage.run(own_stage.gateway.ledger.list_acts("default", 5, None))
    assert [(act.act, act.target) for act in acts if act.act == "version.roll_back"] == [
        ("version.roll_back", "solver")
    ]
    again = admin.post(target, data={"version": str(last), "csrf": csrf_of(admin, path)})
    assert again.status_code == 409
    assert "withdrawn" in again.text
    assert "cannot be gone back to" in admin.get(f"/dashboard/policies/solver/rollback?version={last}").text
