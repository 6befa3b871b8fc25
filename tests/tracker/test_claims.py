"""The promises of `tracker/claims.py`, on memory and on a real Redis: which episode a call that names none gets."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.tracker.call_strategies import call_of, intent
from tracker.claims import PENDING_MS, Claim, Note
from tracker.errors import Gone, NotFound
from tracker.store import EpisodeStore
from tracker.types import CallState, EpisodeHead, EpisodeState, EpisodeStatus

IDLE_MS = 1000
SCOPE = b"s" * 16


def trace(key: str) -> bytes:
    return key.encode().ljust(16, b".")


def claim_of(proposed: str, *traces: bytes, **fields: object) -> Claim:
    known = {"scope": SCOPE, "attempt": f"try-{proposed}", "body_digest": f"body-{proposed}", "now_ms": 100}
    return Claim(proposed=proposed, traces=traces, **(known | fields))  # type: ignore[arg-type]


async def opened(store: EpisodeStore, episode_id: str) -> None:
    await store.open(EpisodeHead(episode_id=episode_id, task="t", implicit=True, created_ms=100), IDLE_MS)


async def answered(
    store: EpisodeStore, episode_id: str, *answers: bytes, call_id: str = "", body: str = "", **fields: object
) -> None:
    """A call of this episode, recorded with these answers."""
    begun = intent(call_id or f"call-{episode_id}", episode_id, started_ms=100)
    index = (await store.begin_call(begun, "episode", None)).index
    call = msgspec.structs.replace(call_of(begun, index), ended_ms=100, body_digest=body)
    call = msgspec.structs.replace(call, **fields)
    note = Note(scope=SCOPE, attempt=f"try-{episode_id}", answers=answers, role="main")
    assert await store.end_call(call, note)


async def episode(store: EpisodeStore, claim: Claim) -> str:
    return (await store.claim(claim)).episode_id


async def test_a_call_without_a_past_opens_an_episode_of_its_own(store: EpisodeStore) -> None:
    assert await episode(store, claim_of("ep-1")) == "ep-1"
    assert await episode(store, claim_of("ep-2", trace("never given"))) == "ep-2"


async def test_a_call_goes_on_where_its_answer_was_given(store: EpisodeStore) -> None:
    await opened(store, "ep-1")
    await answered(store, "ep-1", trace("a"))
    claimed = await store.claim(claim_of("ep-2", trace("a")))
    assert (claimed.episode_id, claimed.role) == ("ep-1", "main")


async def test_what_one_scope_was_given_is_never_found_in_another(store: EpisodeStore) -> None:
    await opened(store, "ep-1")
    await answered(store, "ep-1", trace("a"))
    assert await episode(store, claim_of("ep-2", trace("a"), scope=b"z" * 16)) == "ep-2"


async def test_the_last_known_answer_decides(store: EpisodeStore) -> None:
    for name in ("ep-1", "ep-2"):
        await opened(store, name)
    await answered(store, "ep-1", trace("a"))
    await answered(store, "ep-2", trace("b"))
    assert await episode(store, claim_of("ep-3", trace("unknown"), trace("b"), trace("a"))) == "ep-2"


async def test_equal_answers_are_gone_on_from_one_after_the_other(store: EpisodeStore) -> None:
    names = [f"ep-{n}" for n in range(8)]
    for name in names:
        await opened(store, name)
        await answered(store, name, trace("a"))
    claims = [claim_of(f"new-{n}", trace("a")) for n in range(8)]
    assert sorted(await asyncio.gather(*(episode(store, claim) for claim in claims))) == names
    assert await episode(store, claim_of("again", trace("a"))) == "ep-0"


async def test_a_single_answer_may_be_gone_on_from_twice(store: EpisodeStore) -> None:
    await opened(store, "ep-1")
    await answered(store, "ep-1", trace("a"))
    assert [await episode(store, claim_of(f"new-{n}", trace("a"))) for n in range(2)] == ["ep-1", "ep-1"]


async def test_among_equal_tool_call_ids_the_same_history_decides(store: EpisodeStore) -> None:
    for name, whole in (("ep-1", "x"), ("ep-2", "y")):
        await opened(store, name)
        await answered(store, name, trace(whole), trace("call_0"))
    assert await episode(store, claim_of("new", trace("y"), trace("call_0"))) == "ep-2"
    assert await episode(store, claim_of("new", trace("rewritten"), trace("call_0"))) == "ep-1"
    await store.finish("ep-2", EpisodeStatus.OK)
    assert await episode(store, claim_of("new", trace("y"), trace("call_0"))) == "new"


async def test_an_ended_episode_is_not_gone_on_with(store: EpisodeStore) -> None:
    await opened(store, "ep-1")
    await answered(store, "ep-1", trace("a"))
    await store.finish("ep-1", EpisodeStatus.OK)
    assert await episode(store, claim_of("ep-2", trace("a"))) == "ep-2"


async def test_an_episode_that_was_idle_for_its_time_is_not_gone_on_with(store: EpisodeStore) -> None:
    await opened(store, "ep-1")
    await answered(store, "ep-1", trace("a"))
    assert await episode(store, claim_of("new", trace("a"), now_ms=100 + IDLE_MS - 1)) == "ep-1"
    assert await episode(store, claim_of("new", trace("a"), now_ms=100 + IDLE_MS)) == "new"


async def test_an_episode_with_a_call_in_flight_is_never_idle(store: EpisodeStore) -> None:
    await opened(store, "ep-1")
    await answered(store, "ep-1", trace("a"))
    await store.begin_call(intent("c1", "ep-1"), "episode", None)
    assert await episode(store, claim_of("new", trace("a"), now_ms=100 + 50 * IDLE_MS)) == "ep-1"
    assert not await store.end_idle("ep-1", 100 + 50 * IDLE_MS)


async def test_an_episode_that_is_known_to_have_ended_is_avoided(store: EpisodeStore) -> None:
    await opened(store, "ep-1")
    await answered(store, "ep-1", trace("a"))
    assert await episode(store, claim_of("new", trace("a"), avoided="ep-1")) == "new"


async def test_an_episode_that_was_named_is_never_claimed(store: EpisodeStore) -> None:
    await store.open(EpisodeHead(episode_id="ep-1", task="t"))
    await answered(store, "ep-1", trace("a"))
    assert await episode(store, claim_of("new", trace("a"))) == "new"


async def test_parallel_calls_of_one_session_get_one_episode(store: EpisodeStore) -> None:
    claims = [claim_of(f"ep-{n}", session=b"1" * 16) for n in range(5)]
    [only] = set(await asyncio.gather(*(episode(store, claim) for claim in claims)))
    assert only in {claim.proposed for claim in claims}
    assert await episode(store, claim_of("ep-9", session=b"2" * 16)) == "ep-9"


async def test_a_session_goes_on_in_a_new_episode_once_its_own_has_ended(store: EpisodeStore) -> None:
    assert await episode(store, claim_of("ep-1", session=b"1" * 16)) == "ep-1"
    await opened(store, "ep-1")
    assert await episode(store, claim_of("ep-2", session=b"1" * 16)) == "ep-1"
    await store.finish("ep-1", EpisodeStatus.OK)
    assert await episode(store, claim_of("ep-3", session=b"1" * 16)) == "ep-3"


async def test_a_session_does_not_wait_for_ever_for_an_episode_that_nobody_creates(store: EpisodeStore) -> None:
    assert await episode(store, claim_of("ep-1", session=b"1" * 16)) == "ep-1"
    assert await episode(store, claim_of("ep-2", session=b"1" * 16, now_ms=99 + PENDING_MS)) == "ep-1"
    assert await episode(store, claim_of("ep-3", session=b"1" * 16, now_ms=100 + PENDING_MS)) == "ep-3"


async def test_a_session_does_not_go_on_in_a_deleted_episode(store: EpisodeStore) -> None:
    assert await episode(store, claim_of("ep-1", session=b"1" * 16)) == "ep-1"
    await opened(store, "ep-1")
    await store.delete("ep-1")
    assert await episode(store, claim_of("ep-2", session=b"1" * 16)) == "ep-2"


async def test_a_call_of_a_session_knows_whose_answer_it_goes_on_from(store: EpisodeStore) -> None:
    for name in ("ep-1", "ep-2"):
        await opened(store, name)
    await store.claim(claim_of("ep-1", session=b"1" * 16))
    await answered(store, "ep-2", trace("a"))
    claimed = await store.claim(claim_of("new", trace("a"), session=b"1" * 16))
    assert (claimed.episode_id, claimed.role) == ("ep-1", None)
    await answered(store, "ep-1", trace("b"))
    claimed = await store.claim(claim_of("new", trace("b"), session=b"1" * 16))
    assert (claimed.episode_id, claimed.role) == ("ep-1", "main")


@pytest.mark.parametrize("state", [CallState.COMPLETED, CallState.ABORTED, CallState.FAILED, None])
async def test_a_retry_joins_the_attempt_it_repeats(store: EpisodeStore, state: CallState | None) -> None:
    assert await episode(store, claim_of("ep-1", body_digest="b")) == "ep-1"
    await opened(store, "ep-1")
    if state is None:  # in flight
        await store.begin_call(intent("c1", "ep-1"), "episode", None)
    else:
        await answered(store, "ep-1", body="b", state=state)
    assert await episode(store, claim_of("ep-2", body_digest="b", retry=1)) == "ep-1"
    assert await episode(store, claim_of("ep-3", body_digest="other", retry=1)) == "ep-3"


async def test_an_equal_call_without_a_retry_count_is_another_one(store: EpisodeStore) -> None:
    assert await episode(store, claim_of("ep-1", body_digest="b")) == "ep-1"
    await opened(store, "ep-1")
    assert await episode(store, claim_of("ep-2", body_digest="b")) == "ep-2"


async def test_of_several_attempts_the_one_that_failed_is_repeated_and_each_only_once(store: EpisodeStore) -> None:
    for name in ("ep-1", "ep-2", "ep-3"):
        assert await episode(store, claim_of(name, body_digest="b")) == name
        await opened(store, name)
    await answered(store, "ep-1", body="b")
    await answered(store, "ep-3", body="b", state=CallState.FAILED)
    repeated = [await episode(store, claim_of(f"new-{n}", body_digest="b", retry=1)) for n in range(4)]
    assert repeated == ["ep-3", "ep-2", "ep-1", "new-3"]


async def test_where_nobody_can_tell_which_attempt_is_repeated_none_is(store: EpisodeStore) -> None:
    for name in ("ep-1", "ep-2"):
        await store.claim(claim_of(name, body_digest="b"))
        await opened(store, name)
    assert await episode(store, claim_of("new-1", body_digest="b", retry=1)) == "new-1"
    for name in ("ep-1", "ep-2"):
        await answered(store, name, body="b")
    assert await episode(store, claim_of("new-2", body_digest="b", retry=1)) == "new-2"


async def test_a_second_retry_joins_the_first(store: EpisodeStore) -> None:
    await store.claim(claim_of("ep-1", body_digest="b"))
    await opened(store, "ep-1")
    joined = [await episode(store, claim_of(f"new-{n}", body_digest="b", retry=n)) for n in (1, 2)]
    assert joined == ["ep-1", "ep-1"]


async def test_a_call_recorded_twice_is_noted_once(store: EpisodeStore) -> None:
    await opened(store, "ep-1")
    await answered(store, "ep-1", trace("a"))
    begun = intent("call-ep-1", "ep-1", started_ms=100)
    note = Note(scope=SCOPE, attempt="x", answers=(trace("b"),))
    assert await store.end_call(call_of(begun, 0), note)
    assert await episode(store, claim_of("new", trace("b"))) == "new"


async def test_an_idle_episode_ends_once_and_well(store: EpisodeStore) -> None:
    await opened(store, "ep-1")
    assert not await store.end_idle("ep-1", 99 + IDLE_MS)
    assert await store.end_idle("ep-1", 100 + IDLE_MS)
    assert not await store.end_idle("ep-1", 100 + IDLE_MS)
    view = await store.view("ep-1")
    assert (view.state, view.status) == (EpisodeState.FINISHING, EpisodeStatus.OK)
    assert await store.finishing() == ["ep-1"]


async def test_a_call_renews_the_time_an_episode_may_be_idle(store: EpisodeStore) -> None:
    await opened(store, "ep-1")
    await answered(store, "ep-1", ended_ms=500)
    assert not await store.end_idle("ep-1", 100 + IDLE_MS)
    assert await store.end_idle("ep-1", 500 + IDLE_MS)


async def test_an_episode_that_was_named_is_never_idle(store: EpisodeStore) -> None:
    await store.open(EpisodeHead(episode_id="ep-1", task="t"))
    assert not await store.end_idle("ep-1", 2**40)


async def test_an_episode_that_is_gone_cannot_be_idle(store: EpisodeStore) -> None:
    with pytest.raises(NotFound):
        await store.end_idle("ep-1", 1)
    await opened(store, "ep-1")
    await store.delete("ep-1")
    with pytest.raises(Gone):
        await store.end_idle("ep-1", 1)


async def test_the_first_mark_of_an_episode_stays(store: EpisodeStore) -> None:
    await opened(store, "ep-1")
    begun = [
        (await store.begin_call(intent(f"c{n}", "ep-1"), "episode", None, mark)).mark
        for n, mark in enumerate([b"", b"one\x00", b"two", b""])
    ]
    assert begun == [b"", b"one\x00", b"one\x00", b"one\x00"]


@pytest.mark.slow
async def test_more_attempts_than_are_kept_push_out_the_oldest(store: EpisodeStore) -> None:
    for n in range(300):
        assert await episode(store, claim_of(f"ep-{n}", body_digest="b")) == f"ep-{n}"
    await opened(store, "ep-299")
    assert await episode(store, claim_of("new", body_digest="b", retry=1)) == "ep-299"
