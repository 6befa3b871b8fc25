"""`hone rescore`: another judge over stored episodes, what it would change, and rewards that count when told to."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.rescoring.effect import Change, effect_on, rank_correlation
from gateway.rescoring.rescore import Rescored, Rescoring, rescore
from tests.fakes.archived import RUN, fill
from tests.fakes.gateways import RunningGateway
from tests.fakes.recording import bodies, record
from tracker.clock import SystemClock
from tracker.errors import BadRequest, Conflict, SettingsError
from tracker.ledger import SqlLedger
from tracker.settings import StoreSettings
from tracker.types import Group, Member, Reward

Json = dict[str, Any]
CHAT = "/v1/chat/completions"
JUDGE = """
import json, sys
for line in sys.stdin:
    episode = json.loads(line)
    print("judged", episode["episode_id"], file=open("judged", "a"))
    said = episode["conversations"][-1][-1]["content"]
    print(json.dumps({"reward": len(said) if len(sys.argv) < 2 else json.loads(sys.argv[1])}), flush=True)
"""
FUNCTION = """
def worse(episode):
    return -episode["reward"]

def raising(episode):
    return {}["score"]

async def failing(episode):
    return "good" if episode["episode_id"] == "ep-00000003" else 1
"""


@pytest.fixture
async def stores(tmp_path: Path) -> StoreSettings:
    """Twelve archived episodes of three groups, and judges beside them."""
    url = f"sqlite:///{tmp_path}/hone.db"
    ledger = await SqlLedger.connect(url, SystemClock())
    await fill(ledger, 12)
    await ledger.close()
    (tmp_path / "judge.py").write_text(JUDGE)
    (tmp_path / "my_judges.py").write_text(FUNCTION)
    return StoreSettings(data_dir=tmp_path, database_url=url)


async def rescored(stores: StoreSettings, judge: str, name: str = "new", **fields: Any) -> Rescored:
    asked = Rescoring(run="r", judge=judge, name=name, tenant="default", **fields)
    return await rescore(stores, asked, stores.data_dir, lambda _: None)


async def rewards(stores: StoreSettings, episode_id: str) -> tuple[list[Reward], float | None]:
    ledger = await SqlLedger.connect(stores.database_url, SystemClock())
    try:
        row = await ledger.get_episode("default", episode_id)
        return await ledger.rewards(episode_id), row.reward
    finally:
        await ledger.close()


@pytest.mark.slow
async def test_a_judge_that_turns_everything_around_is_seen_before_anything_is_posted(stores: StoreSettings) -> None:
    done = await rescored(stores, "my_judges:worse", weight=3.0)
    assert (done.num_scored, done.effect.num_groups, done.effect.rank_correlation) == (12, 3, -1.0)
    assert (done.effect.num_advantages, done.effect.num_changed, done.weight) == (12, 12, None)
    assert (await rescored(stores, "my_judges:worse", weight=0.5)).effect.num_changed == 0
    assert len((await rewards(stores, "ep-00000001"))[0]) == 1


@pytest.mark.slow
async def test_posted_rewards_count_nothing_until_they_are_activated_and_then_stay(stores: StoreSettings) -> None:
    done = await rescored(stores, "my_judges:worse", weight=3.0, applies=True)
    assert (done.num_posted, done.num_late, done.weight) == (12, 12, 0.0)  # their groups were trained elsewhere
    events, reward = await rewards(stores, "ep-00000001")
    assert [(event.name, event.value, event.final) for event in events] == [
        ("reward", 0.25, True),
        ("new", -0.25, False),
    ]
    assert (reward, events[1].source) == (0.25, "rescore: my_judges:worse")
    again = await rescored(stores, "my_judges:worse", weight=3.0, applies=True, counts=True)
    assert (again.num_posted, again.weight) == (0, 3.0)
    assert (await rewards(stores, "ep-00000001"))[1] == 0.25 - 0.75
    with pytest.raises(Conflict, match="weigh 3 in run 'r' and count already"):
        await rescored(stores, "my_judges:worse", weight=1.0, applies=True, counts=True)
    assert (await rescored(stores, "my_judges:worse", applies=True)).weight == 3.0
    with pytest.raises(Conflict, match="weigh 1"):
        await rescored(stores, "my_judges:worse", name="reward", weight=2.0, applies=True, counts=True)
    ledger = await SqlLedger.connect(stores.database_url, SystemClock())
    acts, _ = await ledger.list_acts("default", 20, None)
    await ledger.close()
    told = [(act.act, act.outcome) for act in reversed(acts)]
    posted = [("run.weigh", "ok"), ("run.rescore", "ok")]
    refused = [("run.weigh", "run_frozen")]
    assert told == [*posted, *posted, *refused, ("run.rescore", "ok"), *refused]


@pytest.mark.slow
async def test_a_group_that_is_still_open_is_compared_by_what_was_activated(gateway: RunningGateway) -> None:
    await gateway.admin.post("/v1/runs", json={"run": "r", "group_size": 4, "group_timeout_s": 3600})
    ids = [await record(gateway, CHAT, bodies(number)[CHAT], number / 2, run="r") for number in range(3)]
    stores = gateway.settings.stores
    (stores.data_dir / "judges_here.py").write_text(FUNCTION)
    done = await rescored(stores, "judges_here:worse", weight=3.0, applies=True)
    assert (done.num_posted, done.num_late, done.effect.num_still_open, done.effect.num_changed) == (3, 0, 1, 2)

    async def told() -> tuple[list[Json], list[float]]:
        (group,) = (await gateway.admin.get("/v1/groups?run=r")).json()["data"]
        shown = [(await gateway.admin.get(f"/v1/episodes/{episode_id}")).json()["reward"] for episode_id in ids]
        return [member["reward"] for member in group["members"]], shown

    assert await told() == ([0.0, 0.5, 1.0], [0.0, 0.5, 1.0])
    await rescored(stores, "judges_here:worse", weight=3.0, applies=True, counts=True)
    assert await told() == ([0.0, -1.0, -2.0], [0.0, -1.0, -2.0])


@pytest.mark.slow
async def test_a_command_judges_each_episode_once_whatever_stops_it(stores: StoreSettings) -> None:
    command = f"{sys.executable} judge.py"
    done = await rescored(stores, command, concurrency=3)
    judged = (stores.data_dir / "judged").read_text().splitlines()
    assert (done.num_scored, len(judged), len(set(judged))) == (12, 12, 12)
    (kept,) = (stores.data_dir / "rescoring").iterdir()
    lines = kept.read_bytes().splitlines(keepends=True)
    kept.write_bytes(b"".join(lines[:5]) + lines[5][:10])  # as a kill leaves it
    assert (await rescored(stores, command)).effect == done.effect
    assert len((stores.data_dir / "judged").read_text().splitlines()) == 12 + 7
    await rescored(stores, command, name="other", applies=True)
    assert len((stores.data_dir / "judged").read_text().splitlines()) == 12 + 7  # its words are known
    await rescored(stores, command, fresh=True)
    assert len((stores.data_dir / "judged").read_text().splitlines()) == 12 + 7 + 12


@pytest.mark.slow
async def test_what_is_no_score_ends_the_work_with_the_episode_s_name(stores: StoreSettings) -> None:
    with pytest.raises(BadRequest, match=r"ep-00000003.*'good'"):
        await rescored(stores, "my_judges:failing")
    with pytest.raises(BadRequest, match=r"ep-\d+: the judge raised KeyError: 'score' \(.*my_judges.py, line 6\)"):
        await rescored(stores, "my_judges:raising")
    with pytest.raises(BadRequest, match=r'judge answered \{"; a score'):
        await rescored(stores, f"{sys.executable} -c 'print(input()[:1] + chr(34))'")
    with pytest.raises(SettingsError, match="cannot be imported"):
        await rescored(stores, "my_judges:nobody")
    with pytest.raises(SettingsError, match="could not be run"):
        await rescored(stores, "/no/such/judge")
    nulls = await rescored(stores, f"{sys.executable} judge.py null", applies=True)
    assert nulls.effect.num_changed == 0
    assert (await rewards(stores, "ep-00000002"))[1] == 0.5
    with pytest.raises(Conflict, match="has another score under the name 'new'"):
        await rescored(stores, f"{sys.executable} judge.py 1", applies=True)


# Hundredths: rewards that differ by next to nothing are equal to a group, and no longer once they weigh more.
@given(st.lists(st.integers(-500, 500).map(lambda value: value / 100), min_size=2, max_size=6), st.floats(0.1, 10))
def test_the_same_ranking_changes_no_sign(values: list[float], weight: float) -> None:
    members = tuple(Member(episode_id=f"e{place}", reward=value) for place, value in enumerate(values))
    group = Group(group_id="g", tenant="t", run="r", task="", round=0, size=len(values), members=members)
    events = {
        f"e{place}": [Reward(reward_id=f"r{place}", seq=place, episode_id=f"e{place}", value=value)]
        for place, value in enumerate(values)
    }
    scores = {f"e{place}": value for place, value in enumerate(values)}
    change = Change(run=RUN, name="new", weight=weight)
    same = effect_on(group, events, scores, change)
    assert same.num_changed == 0
    nobody = effect_on(group, events, dict.fromkeys(scores), change)
    assert nobody.num_changed == 0


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=2, max_size=20))
def test_a_rank_correlation_is_symmetric_and_bounded(pairs: list[tuple[int, int]]) -> None:
    found = rank_correlation([(float(x), float(y)) for x, y in pairs])
    back = rank_correlation([(float(y), float(x)) for x, y in pairs])
    assert (found is None) == (back is None)
    if found is not None and back is not None:
        assert abs(found - back) < 1e-9
        assert -1 - 1e-9 <= found <= 1 + 1e-9
        assert abs(found + (rank_correlation([(float(x), float(-y)) for x, y in pairs]) or 0)) < 1e-9
