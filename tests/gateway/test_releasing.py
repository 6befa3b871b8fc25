"""A version on trial before a running gateway: who gets it, what becomes of it, and what follows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.alarming import look_for_alarms
from gateway.shadows import MAX_COPIES
from tests.fakes.gateways import CANARY, RunningGateway, running_gateway
from tests.fakes.running import RunningDoor
from tests.fakes.scripted_engine import ScriptedEngine
from tracker.drift import AlarmKind
from tracker.measures import Measures
from tracker.trials import ReleaseEvent, Shadow
from tracker.types import Call, Choice, EpisodeHead, EpisodeStatus, Scope, VersionState

pytestmark = pytest.mark.slow

RULES = """
min_episodes = 20
max_episodes = 400
[[runs]]
run = "pairs"
group_size = 2
"""
RELEASE = "/v1/policies/solver/release"


@pytest.fixture
async def gateway(engine: ScriptedEngine, tmp_path: Path, redis_url: str) -> AsyncIterator[RunningGateway]:
    (tmp_path / "hone.toml").write_text(CANARY + RULES)
    env = {"HONE_REDIS_URL": redis_url, "HONE_POLICIES": ""}
    async with running_gateway(engine, tmp_path, env) as running:
        yield running


async def published(gateway: RunningGateway, name: str, **more: Any) -> dict[str, Any]:
    answer = await gateway.publish(name, gateway.adapter(name, name.encode()), **more)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def release(gateway: RunningGateway) -> dict[str, Any]:
    return (await gateway.admin.get(RELEASE)).json()


async def ask(gateway: RunningGateway, what: str, **body: Any) -> dict[str, Any]:
    answer = await gateway.admin.post(f"/v1/policies/solver/{what}", json=body)
    assert answer.is_success, answer.text
    return answer.json()


async def play(gateway: RunningGateway, task: str, good: tuple[float, float]) -> dict[str, Any]:
    """One episode of one call; its reward is that of the arm that the call was served by: stable, canary."""
    episode = await gateway.open(task=task, run="pairs")
    called = await gateway.chat(episode)
    is_canary = called.headers["x-hone-version"] == "1"
    body = {"episode_id": episode["episode_id"], "reward": good[is_canary]}
    assert (await gateway.admin.post("/v1/reward", json=body)).is_success
    return episode | {"is_canary": is_canary}


async def until_decided(gateway: RunningGateway, good: tuple[float, float]) -> int:
    """Play until the trial has ended; the number of episodes."""
    for number in range(1, 200):
        episode = await play(gateway, f"task-{number // 2}", good)
        await gateway.until(f"/v1/episodes/{episode['episode_id']}", state="archived")
        if (await release(gateway))["canary"] is None:
            return number
    raise AssertionError(await release(gateway))


async def test_a_version_on_trial_gets_its_share_and_every_group_is_of_one_arm(gateway: RunningGateway) -> None:
    assert (await published(gateway, "first"))["state"] == "running"
    told = await release(gateway)
    assert (told["stable"], told["canary"]["version"], told["canary"]["share"]) == (0, 1, 50.0)
    episodes = [await play(gateway, f"task-{number // 2}", (0.5, 0.5)) for number in range(40)]
    arms = [(one["group_id"], one["is_canary"]) for one in episodes]
    assert len(set(arms)) == len({group for group, _ in arms}) == 20
    assert 0 < sum(is_canary for _, is_canary in set(arms)) < 20
    for one in episodes[:6]:
        row = (await gateway.admin.get(f"/v1/episodes/{one['episode_id']}")).json()
        assert row["arms"] == {"solver": {"version": 1, "arm": "canary" if one["is_canary"] else "stable"}}
        assert one["versions"] == {"solver": int(one["is_canary"])}
    groups = (await gateway.admin.get("/v1/groups?run=pairs&limit=200")).json()["data"]
    assert {group["arms"]["solver"]["version"] for group in groups} == {1}


async def test_a_worse_version_is_rolled_back_and_what_it_played_is_withdrawn(gateway: RunningGateway) -> None:
    await published(gateway, "bad", epoch=0)
    open_one = None
    while open_one is None:  # an episode of the canary that goes on when it is rolled back
        episode = await gateway.open(task="long", run="pairs")
        called = await gateway.chat(episode)
        open_one = episode if called.headers["x-hone-version"] == "1" else None
    assert await until_decided(gateway, (0.9, 0.3)) <= 60
    told = await release(gateway)
    assert (told["stable"], told["epoch"]) == (0, 1)
    event = next(event for event in told["events"] if event["kind"] == "rolled_back")
    assert event["by"] == "hone"
    assert event["why"] == "its reward is worse"
    assert event["numbers"]["mean_canary"] == pytest.approx(0.3)
    assert event["numbers"]["upper"] <= 0
    versions = (await gateway.admin.get("/v1/policies")).json()["data"][0]["versions"]
    assert versions[0]["state"] == "withdrawn"
    called = await gateway.chat(open_one)
    assert called.headers["x-hone-version"] == "0"
    row = (await gateway.admin.get(f"/v1/episodes/{open_one['episode_id']}")).json()
    assert "repinned" in {event["kind"] for event in row["events"]}
    groups = (await gateway.admin.get("/v1/groups?run=pairs&limit=200")).json()["data"]
    for group in groups:
        if group["arms"].get("solver", {}).get("arm") == "canary":
            assert (group["state"], group["reason"]) == ("skipped", "withdrawn")
        else:
            assert group["reason"] != "withdrawn"
    refused = await gateway.publish("late", gateway.adapter("late", b"late"), epoch=0)
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "stale_epoch"


async def test_a_better_version_is_promoted_and_the_newest_that_waits_is_next(
    gateway: RunningGateway, engine: ScriptedEngine
) -> None:
    await published(gateway, "good")
    assert (await published(gateway, "second"))["state"] == "waiting"
    third = await published(gateway, "third")
    assert third["state"] == "waiting"
    assert (await release(gateway))["waiting"] == [3, 2]
    assert not any(name.startswith(("solver@2", "solver@3")) for name in engine.models)
    before = 0
    for before in range(1, 151):
        episode = await play(gateway, f"task-{before // 2}", (0.3, 0.9))
        await gateway.until(f"/v1/episodes/{episode['episode_id']}", state="archived")
        if (await release(gateway))["stable"] == 1:
            break
    assert before <= 150
    told = await gateway.until(RELEASE, waiting=[])
    assert told["stable"] == 1
    assert told["canary"]["version"] == 3
    assert {one["version"]: one["state"] for one in told["trials"]} == {1: "promoted", 2: "superseded", 3: "running"}
    assert [event["kind"] for event in reversed(told["events"])] == [
        "waiting", "started", "waiting", "waiting", "promoted", "started",
    ]  # fmt: skip


async def test_an_administrator_pauses_shares_and_promotes_and_it_is_written_down(gateway: RunningGateway) -> None:
    await published(gateway, "mine")
    assert (await ask(gateway, "canary", version=1, share=20))["share"] == 20
    assert (await ask(gateway, "pause"))["state"] == "paused"
    arms = [(await play(gateway, f"paused-{number}", (0.5, 0.5)))["is_canary"] for number in range(8)]
    assert not any(arms)
    assert (await ask(gateway, "resume"))["state"] == "running"
    assert (await ask(gateway, "promote", version=1))["version"] == 1
    told = await release(gateway)
    assert (told["stable"], told["canary"]) == (1, None)
    acts = (await gateway.admin.get("/v1/audit?limit=50")).json()["data"]
    assert {"release.share", "release.pause", "release.resume", "release.promote"} <= {act["act"] for act in acts}
    by = {event["kind"]: event["by"] for event in told["events"]}
    assert by["promoted"] == by["paused"] != "hone"
    again = await gateway.admin.post("/v1/policies/solver/promote", json={"version": 1})
    assert again.status_code == 409
    assert "rollback" in again.json()["error"]["message"]


async def test_only_an_administrator_changes_a_release_and_readers_read_it(gateway: RunningGateway) -> None:
    await published(gateway, "mine")
    reader = await gateway.client(Scope.READ, Scope.TRAINER, Scope.AGENT, Scope.REWARD)
    async with reader:
        assert (await reader.get(RELEASE)).is_success
        assert (await reader.get("/v1/policies/solver/releases")).json()["data"]
        assert (await reader.get("/v1/alarms")).json() == {"data": [], "next_cursor": None}
        for what, body in (("promote", {"version": 1}), ("pause", {}), ("canary", {"version": 1, "share": 5})):
            assert (await reader.post(f"/v1/policies/solver/{what}", json=body)).status_code == 403
    assert (await gateway.admin.get("/v1/policies/none/release")).status_code == 404


async def test_a_shadow_gets_copies_that_nobody_else_sees(gateway: RunningGateway, engine: ScriptedEngine) -> None:
    await published(gateway, "stable")
    await ask(gateway, "promote", version=1)
    await published(gateway, "next")
    await ask(gateway, "pause")
    await ask(gateway, "shadow", version=2, share=100)
    episode = await gateway.open(task="t", run="pairs")

    def copies() -> list[Any]:
        named = [call for call in engine.received if str(call.body.get("model", "")).startswith("solver@2")]
        return [call for call in named if "max_tokens" in call.body and "logprobs" not in call.body]

    num_calls = 0
    async with asyncio.timeout(30):
        while not copies():
            num_calls += 1
            answered = await gateway.chat(episode)
            assert answered.headers["x-hone-version"] == "1"
            await asyncio.sleep(0.05)
    copied = copies()[0]
    assert copied.path == "/v1/completions"
    assert isinstance(copied.body["prompt"][0], int)
    async with asyncio.timeout(30):
        while not (told := await release(gateway))["comparisons"]:
            await asyncio.sleep(0.05)
    assert told["shadow"] == {"version": 2, "share": 100}
    compared = told["comparisons"][0]
    assert (compared["version"], compared["against"], compared["num_failed"]) == (2, 1, 0)
    assert compared["num_calls"] >= 1
    assert compared["mean_tokens_against"] > 0
    timeline = (await gateway.admin.get(f"/v1/episodes/{episode['episode_id']}/timeline")).json()
    assert len(timeline["calls"]) == num_calls
    assert {call["version"] for call in timeline["calls"]} == {1}
    await ask(gateway, "shadow", version=None)
    assert (await release(gateway))["shadow"] is None


async def test_copies_that_find_no_place_are_dropped_and_counted(door: RunningDoor) -> None:
    ledger, shadows = door.services.ledger, door.services.shadows
    await ledger.ensure_policy("solver")
    version = await ledger.reserve_version("solver", None, 1)
    await ledger.put_version(msgspec.structs.replace(version, folder="solver@1", state=VersionState.ACTIVE))
    event = ReleaseEvent(policy="solver", version=1, at_ms=1, kind="shadow")
    await ledger.set_shadow("solver", Shadow(policy="solver", version=1, share=1.0), event)
    await shadows.look()
    for number in range(MAX_COPIES + 3):
        shadows.note(answered(number))
    assert shadows.num_copies == MAX_COPIES
    await shadows.close()
    await shadows.look()
    (tally,) = await ledger.list_tallies("solver")
    assert tally.numbers["num_dropped"] == 3


def answered(number: int) -> Call:
    choice = Choice(index=0, sampled_ids=(7,), logprobs=(-0.5,))
    return Call(call_id=f"c{number}", episode_id="e", index=number, policy="solver", prompt_ids=(1,), choices=(choice,))


async def test_what_is_amiss_is_looked_for_and_told(door: RunningDoor) -> None:
    ledger = door.services.ledger
    await ledger.ensure_policy("solver")
    for number in range(80):
        head = EpisodeHead(episode_id=f"e{number}", task="t", created_ms=number)
        await ledger.create_episode(head, None, "")
        row = await ledger.get_episode("default", head.episode_id)
        tokens = 50 + number % 5 if number < 40 else 200 + number % 5
        measures = {"solver": (0, Measures(num_calls=1, num_choices=1, num_tokens=tokens))}
        row = msgspec.structs.replace(row, measures=measures, archived_ms=number, status=EpisodeStatus.OK)
        await ledger.archive_episode(row, b"", "digest")
    await look_for_alarms(door.services)
    (alarm,) = await ledger.list_alarms("default")
    assert alarm.kind is AlarmKind.LENGTH
    assert "52 tokens" in alarm.detail
    assert b'hone_alarms{kind="length",policy="solver"} 1.0' in door.services.metrics.page()
