"""What a run does not keep goes from its archives, but never what may still be trained; what proves it stays."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection, select, update

from tests.tracker.building import chain_of
from tests.tracker.databases import Clock
from tests.tracker.filling import batch, created, rewarded
from tracker.codec import decode_calls, encode_calls
from tracker.errors import Conflict
from tracker.evidence import Archived, Checked
from tracker.ledger import SqlLedger
from tracker.manifests import Coverage, encode_manifest, manifest_of
from tracker.receipts import decode_receipts, seal
from tracker.removal import DAY_MS
from tracker.samples import rows_of
from tracker.tables import timelines
from tracker.types import Batch, CallCredit, Retention, RunSettings
from tracker.verification import verify

RUN = RunSettings(run="default", group_size=2, retention=Retention(tokens_days=2, text_days=1, metadata_days=3))


async def archive(ledger: SqlLedger, name: str, **head: object) -> Archived:
    """An episode with a chain of calls that say something, archived at 1,000,000."""
    calls = tuple(replace(call, messages=(b'"private"',)) for call in chain_of(2, name))
    await created(ledger, name, **({"metadata": b'{"a":1}'} | head))  # type: ignore[arg-type]
    await rewarded(ledger, name, 1.0, metadata=b'{"b":2}', source="judge")
    row = replace(await ledger.get_episode("default", name), versions={"p": 0}, num_calls=2, archived_ms=1_000_000)
    chain, receipts = seal(calls)
    assert await ledger.archive_episode(row, encode_calls(calls), chain, receipts)
    return Archived(episode_id=name, chain=chain, calls=calls, receipts=decode_receipts(receipts))


async def taken(ledger: SqlLedger) -> tuple[Batch, Archived]:
    """A batch that was taken and has its manifest, and the episode it is trained on."""
    await ledger.put_run("default", RUN)
    one, _ = await archive(ledger, "one"), await archive(ledger, "two")
    (group,) = await ledger.settle_groups(10**8)
    fence = await ledger.take_lease("p", "me", 0, 10**9)
    assert fence is not None
    rows = rows_of(one.calls, RUN, "p")
    credit = tuple(CallCredit(episode_id="one", call_id=row.call_id, advantage=0.5) for row in rows)
    found = await ledger.take(batch(group, fence, credit=credit))
    checked = Checked(context=4, sampled=4)
    manifest = manifest_of(
        found, "dapo", [(row, 0.5) for row in rows], {"one": one}, checked, Coverage(sampled_tokens=4)
    )
    return replace(found, manifest=encode_manifest(manifest)), one


async def kept(ledger: SqlLedger, name: str) -> tuple[tuple[str, ...], int, int]:
    """What was removed, how many calls have ids, how many have messages."""
    row = await ledger.get_episode("default", name)
    calls = decode_calls(await ledger.get_timeline(name) or b"")
    return row.removed, sum(bool(call.prompt_ids) for call in calls), sum(bool(call.messages) for call in calls)


async def test_each_part_goes_when_its_days_are_over_and_the_row_and_the_receipts_stay(
    ledger: SqlLedger, clock: Clock
) -> None:
    await ledger.put_run("default", replace(RUN, run="eval", mode="eval"))
    await archive(ledger, "e", run="eval")
    seen: list[tuple[tuple[str, ...], int, int]] = []
    for days in (0.5, 1, 2, 3):
        clock.at_ms = 1_000_000 + int(days * DAY_MS)
        await ledger.apply_retention()
        seen.append(await kept(ledger, "e"))
    assert seen == [
        ((), 2, 2),
        (("text",), 2, 0),
        (("tokens", "text"), 0, 0),
        (("tokens", "text", "metadata"), 0, 0),
    ]
    row = await ledger.get_episode("default", "e")
    assert (row.head.metadata, row.num_calls, row.reward) == (b"null", 2, 1.0)
    assert [(event.kind, event.detail) for event in row.events] == [
        ("retention", "text"),
        ("retention", "tokens"),
        ("retention", "metadata"),
    ]
    (event,) = await ledger.rewards("e")
    assert (event.value, event.metadata, event.source) == (1.0, b"null", "")
    assert await ledger.apply_retention() == 0


async def test_nothing_goes_while_its_group_may_be_trained_and_then_verify_says_that_it_went(
    ledger: SqlLedger, clock: Clock
) -> None:
    one, _ = await taken(ledger)
    clock.at_ms += 10 * DAY_MS
    assert await ledger.apply_retention() == 0
    await ledger.mark_trained(one)
    assert verify(await ledger.stored_batch(one.batch_id)).faults == ()
    assert await ledger.apply_retention() == 2
    finding = verify(await ledger.stored_batch(one.batch_id))
    assert (finding.faults, finding.shares.trained, finding.shares.sampled) == ((), 4, 0)
    assert finding.shares.coverage == Coverage(sampled_tokens=4)
    assert finding.gone == {"tokens removed by retention at 1970-01-11T00:16:40Z": 4}


async def test_what_proves_an_episode_is_still_checked_when_its_tokens_are_gone(
    ledger: SqlLedger, clock: Clock
) -> None:
    one, episode = await taken(ledger)
    await ledger.mark_trained(one)
    clock.at_ms += 10 * DAY_MS
    await ledger.apply_retention()
    stored = await ledger.stored_batch(one.batch_id)
    gone = stored.gone["one"]
    for forged in (
        replace(gone.sealed, chain="0" * 64),
        replace(gone.sealed, receipts=(episode.receipts or ())[:1]),
        replace(gone.sealed, receipts=tuple(replace(r, engine="x") for r in episode.receipts or ())),
    ):
        assert verify(replace(stored, gone=stored.gone | {"one": replace(gone, sealed=forged)})).faults


async def test_gateways_that_look_at_once_remove_each_part_once(ledger: SqlLedger, clock: Clock) -> None:
    await ledger.put_run("default", replace(RUN, run="eval", mode="eval"))
    names = [f"e{number}" for number in range(4)]
    for name in names:
        await archive(ledger, name, run="eval")
    clock.at_ms += 10 * DAY_MS
    changed = await asyncio.gather(*(ledger.apply_retention() for _ in range(3)))
    assert sum(changed) == len(names)
    assert [len((await ledger.get_episode("default", name)).events) for name in names] == [1] * len(names)
    assert {await kept(ledger, name) for name in names} == {(("tokens", "text", "metadata"), 0, 0)}


async def test_an_archive_that_cannot_be_read_is_left_and_said_so_until_somebody_mends_it(
    ledger: SqlLedger, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await ledger.put_run("default", replace(RUN, run="eval", mode="eval"))
    for name in ("bad", "good"):
        await archive(ledger, name, run="eval")
    whole = await ledger.get_timeline("bad")
    assert whole is not None
    await stored(ledger, "bad", whole[:-8])
    clock.at_ms += 10 * DAY_MS
    assert [await ledger.apply_retention(1) for _ in range(3)] == [1, 1, 0]  # metadata of one, all of the other
    assert "episode bad" in caplog.text
    bad = await ledger.get_episode("default", "bad")
    assert bad.removed == ("metadata",)
    assert (await ledger.get_episode("default", "good")).removed == ("tokens", "text", "metadata")
    assert await raw(ledger, "bad") == whole[:-8]
    left = [event for event in bad.events if event.kind == "retention_left"]
    assert [event.detail.partition(":")[0] for event in left] == ["tokens, text"]

    await stored(ledger, "bad", whole)
    assert await ledger.apply_retention() == 0
    clock.at_ms += DAY_MS
    assert await ledger.apply_retention() == 1
    assert await kept(ledger, "bad") == (("tokens", "text", "metadata"), 0, 0)


async def test_an_archive_that_stays_unreadable_is_looked_at_once_a_day_and_has_one_event(
    ledger: SqlLedger, clock: Clock
) -> None:
    await ledger.put_run("default", replace(RUN, run="eval", mode="eval"))
    await archive(ledger, "bad", run="eval")
    await stored(ledger, "bad", b"nothing of ours")
    clock.at_ms += 10 * DAY_MS
    for _ in range(3):
        await ledger.apply_retention()
        await ledger.apply_retention()
        clock.at_ms += DAY_MS
    events = [event for event in (await ledger.get_episode("default", "bad")).events if event.kind == "retention_left"]
    assert [event.at_ms for event in events] == [clock.at_ms - DAY_MS]


async def stored(ledger: SqlLedger, name: str, blob: bytes) -> None:
    """Overwrite an archive, as a disk or a person might."""

    def overwrite(connection: Connection) -> None:
        connection.execute(update(timelines).where(timelines.c.episode_id == name).values(blob=blob))

    await ledger.write(overwrite)


async def raw(ledger: SqlLedger, name: str) -> bytes:
    def look(connection: Connection) -> bytes:
        return bytes(connection.execute(select(timelines.c.blob).where(timelines.c.episode_id == name)).scalar_one())

    return await ledger.read(look)


async def test_one_round_changes_no_more_than_it_is_told(ledger: SqlLedger, clock: Clock) -> None:
    await ledger.put_run("default", replace(RUN, run="eval", mode="eval"))
    for number in range(3):
        await archive(ledger, f"e{number}", run="eval")
    clock.at_ms += 10 * DAY_MS
    assert [await ledger.apply_retention(2) for _ in range(3)] == [2, 1, 0]


async def test_an_implicit_episode_without_tokens_takes_no_place_when_it_is_rewarded_late(
    ledger: SqlLedger, clock: Clock
) -> None:
    await ledger.put_run("default", RUN)
    calls = chain_of(1, "e")
    await created(ledger, "e", implicit=True)
    row = replace(await ledger.get_episode("default", "e"), archived_ms=1_000_000)
    assert await ledger.archive_episode(row, encode_calls(calls), *seal(calls))
    clock.at_ms += 10 * DAY_MS
    assert await ledger.apply_retention() == 1
    assert (await rewarded(ledger, "e")).late
    assert (await ledger.get_episode("default", "e")).head.group_id is None


async def test_what_a_run_keeps_may_change_when_the_rest_is_frozen(ledger: SqlLedger) -> None:
    await ledger.put_run("default", RUN)
    await created(ledger, "e")
    longer = replace(RUN, retention=Retention(tokens_days=30))
    assert await ledger.put_run("default", longer) == longer
    assert (await ledger.get_run("default", "default")).retention == longer.retention
    with pytest.raises(Conflict, match="group_size"):
        await ledger.put_run("default", replace(longer, group_size=3))
