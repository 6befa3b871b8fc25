"""Episodes are found by what they are, page by page in both directions, on every database."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from sqlalchemy import Connection, text

from tests.tracker.building import call
from tests.tracker.databases import Clock
from tests.tracker.filling import created, rewarded
from tracker.archive import packed
from tracker.errors import BadRequest
from tracker.ledger import SqlLedger
from tracker.store import EpisodeView
from tracker.types import Call, EpisodeFilter, EpisodeHead, EpisodeState, EpisodeStatus, RunSettings


async def archived(ledger: SqlLedger, head: EpisodeHead, calls: Sequence[Call]) -> None:
    view = EpisodeView(
        head=head, state=EpisodeState.SEALED, status=EpisodeStatus.OK, calls=tuple(calls), intents=(), pins={}
    )
    run = await ledger.get_run("default", head.run)
    done = packed(view, run, 2_000_000)
    assert await ledger.archive_episode(done.row, done.blob, done.digest, done.receipts)


async def names(ledger: SqlLedger, **wanted: object) -> list[str]:
    page = await ledger.find_episodes("default", EpisodeFilter(**wanted), 100)  # type: ignore[arg-type]
    return sorted(row.head.episode_id for row in page.rows)


async def made(ledger: SqlLedger, name: str, *calls: dict[str, object]) -> None:
    head = await created(ledger, name)
    told = [call(f"{name}-{place}", place, [1], [2], episode_id=name, **fields) for place, fields in enumerate(calls)]
    await archived(ledger, head, told)


async def test_an_archived_episode_is_found_by_the_calls_it_has(ledger: SqlLedger) -> None:
    await made(ledger, "a", {"version": 1}, {"version": 2, "role": "explore"})
    await made(ledger, "b", {"version": 2}, {"policy": None, "role": "judge"})
    await created(ledger, "open")
    assert await names(ledger, policy="p") == ["a", "b"]
    assert await names(ledger, version=1) == ["a"]
    assert await names(ledger, version=2) == ["a", "b"]
    assert await names(ledger, role="judge") == ["b"]
    assert await names(ledger, policy="p", role="judge") == []
    assert await names(ledger, role="explore", version=2) == ["a"]
    assert await names(ledger) == ["a", "b", "open"]


async def test_a_range_of_rewards_goes_by_the_newest_events_and_the_weights(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RunSettings(run="weighed", reward_weights={"style": 0.5}))
    await created(ledger, "half", run="weighed")
    await rewarded(ledger, "half", 1.0, name="style")
    await created(ledger, "whole")
    await rewarded(ledger, "whole", 0.0)
    assert await names(ledger, min_reward=0.5, max_reward=0.5) == ["half"]
    await rewarded(ledger, "whole", 1.0)
    await rewarded(ledger, "whole", 9.0, call_id="some-call", final=False)
    assert await names(ledger, min_reward=0.75) == ["whole"]
    await rewarded(ledger, "whole", None)
    assert await names(ledger, min_reward=0.75) == []
    await created(ledger, "unscored")
    assert await names(ledger, min_reward=-1e308) == ["half"]


async def test_a_reward_that_an_older_gateway_stored_is_counted_too(ledger: SqlLedger) -> None:
    await created(ledger, "e")
    await rewarded(ledger, "e", 0.25)
    assert await names(ledger, max_reward=0.25) == ["e"]

    def by_hand(connection: Connection) -> None:
        copied = "reward_id || '-2', episode_id, call_id, name, 0.75, final, source, metadata, late, created_ms"
        told = "reward_id, episode_id, call_id, name, value, final, source, metadata, late, created_ms"
        connection.execute(text(f"INSERT INTO rewards ({told}) SELECT {copied} FROM rewards"))

    await ledger.write(by_hand)
    assert await names(ledger, max_reward=0.25) == []
    assert await names(ledger, min_reward=0.75) == ["e"]


async def test_the_kinds_of_calls_that_nobody_noted_are_noted_later(ledger: SqlLedger) -> None:
    await made(ledger, "a", {"role": "explore"})
    await made(ledger, "b", {"role": "explore"})

    def forget(connection: Connection) -> None:
        connection.execute(text("DELETE FROM call_kinds"))
        connection.execute(text("UPDATE episodes SET has_kinds = false"))

    await ledger.write(forget)
    assert await names(ledger, role="explore") == []
    assert await ledger.note_kinds(1) == 1
    assert await names(ledger, role="explore") == ["a"]
    assert (await ledger.note_kinds(9), await ledger.note_kinds(9)) == (1, 0)
    assert await names(ledger, role="explore") == ["a", "b"]


async def test_a_deleted_episode_is_found_by_nothing(ledger: SqlLedger) -> None:
    await made(ledger, "a", {"role": "explore"})
    await rewarded(ledger, "a", 1.0)
    await ledger.delete_episode("default", "a")
    assert await names(ledger) == await names(ledger, role="explore") == await names(ledger, min_reward=0) == []
    assert await ledger.note_kinds(9) == 0


async def test_pages_lead_to_the_end_and_back(ledger: SqlLedger) -> None:
    for number in range(7):
        await created(ledger, f"e{number}", created_ms=1_000_000 + number // 2)
    there: list[list[str]] = []
    cursor = None
    while True:
        page = await ledger.find_episodes("default", EpisodeFilter(), 3, cursor)
        there.append([row.head.episode_id for row in page.rows])
        if page.older is None:
            break
        cursor = page.older
    assert there == [["e6", "e5", "e4"], ["e3", "e2", "e1"], ["e0"]]
    back: list[list[str]] = []
    while page.newer is not None:
        page = await ledger.find_episodes("default", EpisodeFilter(), 3, page.newer)
        back.append([row.head.episode_id for row in page.rows])
    assert back == [there[1], there[0]]
    assert page.older is not None


async def test_another_tenant_finds_nothing(ledger: SqlLedger, clock: Clock) -> None:
    await made(ledger, "a", {})
    page = await ledger.find_episodes("other", EpisodeFilter(policy="p"), 9)
    assert (page.rows, page.older, page.newer) == ((), None, None)


@pytest.mark.parametrize("cursor", ["x", "PDE6ZQ", "", "MTo=", "PDE6"])
async def test_a_cursor_that_is_none_of_ours_is_refused(ledger: SqlLedger, cursor: str) -> None:
    with pytest.raises(BadRequest, match="next_cursor"):
        await ledger.find_episodes("default", EpisodeFilter(), 9, cursor)


async def test_every_filter_finds_what_looking_at_each_episode_finds(ledger: SqlLedger) -> None:
    chosen = random.Random(3)
    scores: dict[str, float | None] = {}
    for number in range(20):
        name = f"e{number:02}"
        await made(ledger, name, {"version": chosen.randrange(3), "role": chosen.choice(["main", "explore"])})
        scores[name] = chosen.choice([None, 0.0, 0.5, 1.0])
        if scores[name] is not None:
            await rewarded(ledger, name, scores[name])
    at_least = sorted(name for name, score in scores.items() if score is not None and score >= 0.5)
    assert await names(ledger, min_reward=0.5) == at_least
    both = await names(ledger, min_reward=0.5, version=1, role="main")
    assert both == sorted(set(at_least) & set(await names(ledger, version=1)) & set(await names(ledger, role="main")))
