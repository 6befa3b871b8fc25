"""The curves and the steps of a policy, and what one step was trained on."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from tests.dashboard.stage import Stage

pytestmark = pytest.mark.slow
Signed = Callable[..., httpx.Client]


def csrf_of(client: httpx.Client, path: str) -> str:
    text = client.get(path).text
    return text.partition('name="csrf" value="')[2].partition('"')[0]


def test_the_curves_and_steps_of_a_policy_are_shown_newest_first(http: Signed, stage: Stage) -> None:
    text = http("read").get("/dashboard/training").text
    assert text.count("<figure>") >= 10
    assert "<title>Reward</title>" in text
    places = [text.index(f"/dashboard/training/{batch}") for batch in reversed(stage.told.batches)]
    assert places == sorted(places)
    assert 'aria-current="page">solver' in text


def test_a_policy_without_steps_says_so_and_one_that_is_none_is_not_found(http: Signed) -> None:
    client = http("read")
    assert "No step was taken yet" in client.get("/dashboard/training?policy=checker").text
    missing = client.get("/dashboard/training?policy=nobody")
    assert (missing.status_code, "There is no policy" in missing.text) == (404, True)
    assert client.get("/dashboard/training?cursor=x").status_code == 400


def test_a_step_tells_its_groups_its_checks_and_its_manifest(http: Signed, stage: Stage) -> None:
    batch = stage.told.batches[-1]
    text = http("read").get(f"/dashboard/training/{batch}").text
    stored = stage.run(stage.gateway.ledger.list_batches(batch_ids=[batch]))[0]
    assert "Context-faithful" in text
    assert "100.0 %" in text
    for episode in {item.episode_id for item in stored.credit}:
        assert f"/dashboard/episodes/{episode}" in text
    assert "Trained spans" in text
    assert "Verify now" not in text  # a read key changes nothing and puts no load on


def test_groups_and_episodes_of_a_step_are_told_to_their_tenant_only(http: Signed, stage: Stage) -> None:
    batch = stage.told.batches[-1]
    text = http("other").get(f"/dashboard/training/{batch}").text
    stored = stage.run(stage.gateway.ledger.list_batches(batch_ids=[batch]))[0]
    assert "of other tenants" in text
    for item in stored.credit:
        assert item.episode_id not in text
        assert item.call_id not in text


def test_batches_over_rest_name_episodes_to_their_tenant_only(http: Signed, stage: Stage) -> None:
    def asked(name: str) -> dict[str, dict[str, object]]:
        headers = {"Authorization": f"Bearer {stage.keys[name]}"}
        answer = http(None).get("/v1/batches", headers=headers)
        return {batch["batch_id"]: batch for batch in answer.json()["data"]}

    own, foreign = (asked(name)[stage.told.batches[-1]] for name in ("read", "other"))
    assert own["credit"]
    assert own["manifest"]["spans"]  # type: ignore[index]
    assert own["num_foreign"] == 0
    assert foreign["credit"] == []
    assert foreign["manifest"]["spans"] == []  # type: ignore[index]
    assert foreign["manifest"]["episodes"] == {}  # type: ignore[index]
    assert foreign["num_foreign"] == len(own["manifest"]["spans"])  # type: ignore[index, arg-type]


def test_a_step_that_is_none_is_not_found(http: Signed) -> None:
    assert http("read").get("/dashboard/training/none").status_code == 404


def test_verifying_checks_what_is_stored_and_needs_an_administrator_and_a_token(http: Signed, stage: Stage) -> None:
    path = f"/dashboard/training/{stage.told.batches[-1]}"
    admin = http("admin")
    answer = admin.post(f"{path}/verify", data={"csrf": csrf_of(admin, path)})
    assert answer.status_code == 200
    assert "Verified." in answer.text
    assert "context-faithful 100.00%" in answer.text
    assert admin.post(f"{path}/verify", data={"csrf": "x"}).status_code == 403
    reader = http("read")
    assert reader.post(f"{path}/verify", data={"csrf": csrf_of(reader, path)}).status_code == 403
    none = admin.post("/dashboard/training/none/verify", data={"csrf": csrf_of(admin, path)})
    assert none.status_code == 404


def test_htmx_gets_the_finding_alone(http: Signed, stage: Stage) -> None:
    path = f"/dashboard/training/{stage.told.batches[-1]}"
    admin = http("admin")
    headers = {"HX-Request": "true", "HX-Target": "checked", "X-CSRF-Token": csrf_of(admin, path)}
    text = admin.post(f"{path}/verify", headers=headers).text
    assert text.strip().startswith('<div id="checked"')
    assert "<html" not in text
