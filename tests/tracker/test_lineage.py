"""Which versions were trained on an episode, told by what SQL holds, also after it was deleted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.tracker.building import chain_of
from tests.tracker.filling import batch, created, rewarded
from tracker.codec import encode_calls
from tracker.errors import BadRequest, NotFound
from tracker.evidence import Archived, Checked
from tracker.ledger import SqlLedger
from tracker.manifests import Coverage, encode_manifest, manifest_of
from tracker.receipts import decode_receipts, seal
from tracker.samples import rows_of
from tracker.types import Batch, CallCredit, RunSettings, VersionState

RUN = RunSettings(run="default", group_size=2)


@pytest.fixture
async def fence(ledger: SqlLedger) -> int:
    await ledger.put_run("default", RUN)
    await ledger.ensure_policy("p")
    taken = await ledger.take_lease("p", "me", 0, 10**9)
    assert taken is not None
    return taken


async def taken(ledger: SqlLedger, fence: int, step: int, epoch: int = 0) -> tuple[Batch, str, str]:
    """A batch taken, of whose two episodes only the first one has credit; both are told."""
    names = (f"a-{step}", f"b-{step}")
    kept: dict[str, Archived] = {}
    for value, name in enumerate(names):
        calls = chain_of(2, name)
        await created(ledger, name, f"t{step}")
        await rewarded(ledger, name, float(value))
        row = replace(await ledger.get_episode("default", name), versions={"p": 0}, archived_ms=1)
        chain, receipts = seal(calls)
        assert await ledger.archive_episode(row, encode_calls(calls), chain, receipts)
        kept[name] = Archived(episode_id=name, chain=chain, calls=calls, receipts=decode_receipts(receipts))
    (group,) = await ledger.settle_groups(10**8)
    rows = rows_of(kept[names[0]].calls, RUN, "p")
    credit = tuple(CallCredit(episode_id=names[0], call_id=row.call_id, advantage=0.5) for row in rows)
    one = await ledger.take(batch(group, fence, step, epoch=epoch, credit=credit))
    checked = Checked(context=4, sampled=4)
    manifest = manifest_of(one, "dapo", [(row, 0.5) for row in rows], kept, checked, Coverage())
    return replace(one, manifest=encode_manifest(manifest)), *names


async def published(ledger: SqlLedger, one: Batch) -> int:
    """The batch stepped, its adapter published and active, as a trainer does it."""
    version = await ledger.reserve_version("p", one.epoch, 1)
    await ledger.put_version(replace(version, state=VersionState.LOADING, folder=f"p@{version.version}", digest="d"))
    await ledger.activate("p", version.version, one.epoch)
    await ledger.mark_trained(replace(one, version=version.version))
    return version.version


async def test_an_episode_tells_the_versions_that_carry_it_until_they_are_rolled_back(
    ledger: SqlLedger, fence: int
) -> None:
    one, trained, baseline = await taken(ledger, fence, 1)
    before = await ledger.episode_lineage("default", trained)
    assert [(told.state, told.carried_by) for told in before.batches] == [("taken", ())]
    await published(ledger, one)
    two, later, _ = await taken(ledger, fence, 2)
    await published(ledger, two)
    await ledger.rollback("p", 1)
    three, _, _ = await taken(ledger, fence, 3, epoch=1)
    await published(ledger, three)
    told = await ledger.episode_lineage("default", trained)
    assert told.versions == {"p": (1, 2, 3)}
    assert [(item.batch_id, item.num_tokens, item.version) for item in told.batches] == [("batch-1", 4, 1)]
    assert (told.group_state, told.is_deleted) == ("trained", False)
    assert (await ledger.episode_lineage("default", later)).versions == {"p": (2,)}
    assert (await ledger.episode_lineage("default", baseline)).batches == ()


async def test_a_deleted_episode_still_tells_what_was_trained_on_it_and_a_foreign_one_is_not_found(
    ledger: SqlLedger, fence: int
) -> None:
    one, trained, _ = await taken(ledger, fence, 1)
    await published(ledger, one)
    before = await ledger.episode_lineage("default", trained)
    await ledger.delete_episode("default", trained)
    after = await ledger.episode_lineage("default", trained)
    assert (after.is_deleted, after.batches, after.versions) == (True, before.batches, before.versions)
    for tenant, name in (("other", trained), ("default", "nothing")):
        with pytest.raises(NotFound):
            await ledger.episode_lineage(tenant, name)


async def test_a_version_tells_its_batches_page_by_page_and_only_episodes_of_the_tenant(
    ledger: SqlLedger, fence: int
) -> None:
    for step in (1, 2, 3):
        one, _, _ = await taken(ledger, fence, step)
        await published(ledger, one)
    first, cursor = await ledger.version_lineage("default", "p", 3, 2, None)
    rest, end = await ledger.version_lineage("default", "p", 3, 2, cursor)
    assert [(item.step, item.is_own) for item in (*first, *rest)] == [(3, True), (2, False), (1, False)]
    assert end is None
    assert [(item.episode_id, item.num_tokens) for item in rest[0].episodes] == [("a-1", 4)]
    foreign, _ = await ledger.version_lineage("other", "p", 1, 2, None)
    assert [(item.episodes, item.num_foreign) for item in foreign] == [((), 1)]
    with pytest.raises(NotFound):
        await ledger.version_lineage("default", "p", 9, 2, None)
    with pytest.raises(BadRequest):
        await ledger.version_lineage("default", "p", 3, 2, "wrong")
