"""What is not what the receipts say is found and named: calls, rows, adapters, and what a model is fed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracker.building import RUN, call, chain_of, choice, episodes
from tracker.codec import encode_calls
from tracker.errors import CorruptRecord
from tracker.evidence import (
    Adapter,
    Archived,
    adapter_fault,
    check_context,
    check_episode,
    check_rows,
    episode_faults,
    first_difference,
)
from tracker.receipts import decode_receipts, seal
from tracker.samples import Row, rows_of
from tracker.types import Call, Sampling

id_lists = st.lists(st.integers(0, 3), max_size=5)
SEALED = chain_of(3)
"""Calls e-0, e-1, e-2, each continuing the one before; two sampled ids each."""


def archived(calls: Sequence[Call], sealed: Sequence[Call] | None = None, *, with_receipts: bool = True) -> Archived:
    """An archive that holds `calls` and was sealed with `sealed`."""
    chain, receipts = seal(calls if sealed is None else sealed)
    known = decode_receipts(receipts) if with_receipts else None
    return Archived(episode_id="e", chain=chain, calls=tuple(calls), receipts=known)


def changed(number: int, **fields: object) -> list[Call]:
    """The sealed calls with one of them changed."""
    calls = list(SEALED)
    calls[number] = msgspec.structs.replace(calls[number], **fields)
    return calls


@given(episodes())
def test_what_was_sealed_is_what_is_read_back(calls: list[Call]):
    chain, receipts = seal(calls)
    blob = encode_calls(calls)
    opened = Archived.of(calls[0].episode_id if calls else "e", blob, chain, receipts)
    assert list(episode_faults(opened)) == []
    rows = rows_of(opened.calls, RUN, "p")
    adapters = {1: Adapter(registered="")}
    assert check_rows(rows, {"e": opened}, "p", adapters).context == sum(len(row.sampled_ids) for row in rows)


CHANGED_CALLS = {
    "a flipped sampled id": (changed(1, choices=(choice([51, 98]),)), "call e-1, choice 0, offset 5: .* sampled ids"),
    "a flipped id of the prompt": (changed(1, prompt_ids=(1, 50, 99, 98, 7)), "call e-1, offset 0: the prompt ids"),
    "another log-probability": (
        changed(2, choices=(choice([52, 99], [-0.125, -0.26]),)),
        "call e-2, choice 0, offset 9: the log-prob",
    ),
    "another version": (changed(0, version=3), "call e-0: the version is 3, its receipt says 0"),
    "another adapter": (changed(0, adapter_digest="ab"), "call e-0: the adapter is 'ab'"),
    "another policy": (changed(0, policy="q"), "call e-0: the policy is 'q'"),
    "another engine": (changed(0, engine="x"), "call e-0: the engine is 'x'"),
    "another temperature": (changed(0, sampling=Sampling(temperature=0.5)), "call e-0: .* other settings"),
    "one choice more": (changed(0, choices=(choice([50, 99]), choice([1], index=1))), "call e-0: it has 2 choices"),
    "a call of another episode": (changed(1, episode_id="f"), "call e-1: it is a call of episode f"),
    "a call that is missing": ([SEALED[0], SEALED[2]], "call e-1: it was sealed .* missing"),
    "a call that was added": ([*SEALED, call("more", 3, [1], [2])], "call more: it was not there"),
    "a call that is doubled": ([*SEALED, SEALED[2]], "call e-2: it was not there"),
    "calls re-ordered": (
        [SEALED[0], SEALED[2], SEALED[1]],
        "call e-2: calls are re-ordered: it stands at place 1, where e-1",
    ),
    "calls that began in another order": (changed(1, index=7), "call e-2: calls are re-ordered"),
}


@pytest.mark.parametrize(("calls", "line"), CHANGED_CALLS.values(), ids=CHANGED_CALLS)
def test_an_episode_that_is_not_the_one_that_was_sealed_is_refused_with_the_place(calls: list[Call], line: str):
    with pytest.raises(CorruptRecord, match=f"^episode e, {line}"):
        check_episode(archived(calls, SEALED))


@pytest.mark.parametrize("number", [0, 1, 3, 7, 10, 12])
def test_without_stored_receipts_the_chain_still_refuses(number: int):
    calls, _ = list(CHANGED_CALLS.values())[number]
    with pytest.raises(CorruptRecord, match="episode e: its calls do not close to the chain"):
        check_episode(archived(calls, SEALED, with_receipts=False))


def test_receipts_that_were_changed_with_the_calls_do_not_close_to_the_chain():
    calls = changed(1, choices=(choice([51, 98]),))
    chain, _ = seal(SEALED)
    forged = Archived(episode_id="e", chain=chain, calls=tuple(calls), receipts=decode_receipts(seal(calls)[1]))
    with pytest.raises(CorruptRecord, match="its receipts do not close to the chain"):
        check_episode(forged)


def test_an_archive_that_does_not_open_says_whose_it_is():
    with pytest.raises(CorruptRecord, match=r"^episode e: "):
        Archived.of("e", b"not ours", "", None)
    with pytest.raises(CorruptRecord, match=r"^episode e: .*receipts"):
        Archived.of("e", encode_calls(SEALED), "", b"\xff")


def row(number: int = 2, **fields: object) -> Row:
    return msgspec.structs.replace(rows_of(SEALED, RUN, "p")[number], **fields)


CHANGED_ROWS = {
    "a flipped token": (row(sampled_ids=(52, 98)), "offset 10: .* sampled ids"),
    "the same text as other ids": (row(sampled_ids=(5, 2, 99), logprobs=(-0.1, -0.2, -0.3)), "offset 9: .* sampled"),
    "thinking stripped and merged anyway": (
        row(prompt_ids=row(1).prompt_ids + row(1).sampled_ids[1:] + (98, 1)),
        "offset 5: the prompt ids",
    ),
    "another log-probability": (row(logprobs=(-0.5, -0.25)), "offset 9: the log-prob"),
    "another version": (row(version=1), ": the version is 1"),
    "another adapter": (row(adapter_digest="ab"), ": the adapter is 'ab'"),
    "another temperature": (row(temperature=0.5), ": .* other settings"),
    "another receipt": (row(receipt=row(1).receipt), ": it names another receipt"),
    "a choice that is not there": (row(choice=1), ": the call has no such choice"),
}


@pytest.mark.parametrize(("wrong", "line"), CHANGED_ROWS.values(), ids=CHANGED_ROWS)
def test_a_row_that_is_not_the_choice_of_its_call_is_refused_with_the_place(wrong: Row, line: str):
    with pytest.raises(CorruptRecord, match=f"^episode e, call e-2, choice {wrong.choice}(, |){line}"):
        check_rows([wrong], {"e": archived(SEALED)}, "p", {1: Adapter(registered="")})


def test_a_row_of_no_call_or_of_another_policy_is_refused():
    with pytest.raises(CorruptRecord, match=r"call gone, choice 0: there is no such call"):
        check_rows([row(call_id="gone")], {"e": archived(SEALED)}, "p", {})
    with pytest.raises(CorruptRecord, match=r"episode f, .*: there is no such call"):
        check_rows([row(episode_id="f")], {"e": archived(SEALED)}, "p", {})
    with pytest.raises(CorruptRecord, match="call e-2, choice 0: it is a row of policy p, not of q"):
        check_rows([row()], {"e": archived(SEALED)}, "q", {})


def test_a_version_must_be_the_adapter_that_tokens_were_sampled_with():
    adapters = {1: Adapter(registered="aa", folder="p@1-aa", found="aa"), 2: Adapter(registered="bb", found=None)}
    assert adapter_fault(1, "aa", adapters) is None
    assert adapter_fault(2, "bb", adapters) is None
    assert adapter_fault(0, "", adapters) is None
    swapped = {1: Adapter(registered="aa", folder="p@1-aa", found="cc")}
    lines = [
        adapter_fault(3, "aa", adapters),
        adapter_fault(1, "bb", adapters),
        adapter_fault(0, "aa", adapters),
        adapter_fault(1, "aa", swapped),
    ]
    assert [fault.what for fault in lines if fault is not None] == [
        "version 3 was never registered",
        "it was sampled with bb, version 1 is registered as aa",
        "it was sampled with aa, version 0 is registered as no adapter",
        "adapters/p@1-aa holds cc, version 1 is aa",
    ]


def test_a_row_that_runs_along_its_own_ids_passes():
    for one in rows_of(SEALED, RUN, "p"):
        check_context(one, list(one.prompt_ids + one.sampled_ids)[:-1])


@pytest.mark.parametrize(
    ("context", "offset"),
    [
        ([1, 50, 99, 98, 0, 51, 99, 98, 2, 52], 8),
        ([1, 50, 99, 98, 0, 51, 99, 98, 1], 9),
        ([1, 50, 99, 98, 0, 51, 99, 98, 1, 52, 99], 10),
        ([50, 99, 98, 0, 51, 99, 98, 1, 52], 0),
    ],
    ids=["other", "shorter", "longer", "moved"],
)
def test_a_row_that_would_run_along_any_others_is_refused_with_the_offset(context: list[int], offset: int):
    with pytest.raises(CorruptRecord, match=f"episode e, call e-2, choice 0, offset {offset}: it would be trained"):
        check_context(row(), context)


@given(id_lists, id_lists)
def test_the_first_difference_is_where_what_came_before_is_equal(one: list[int], other: list[int]) -> None:
    place = first_difference(one, other)
    if place is None:
        assert one == other
    else:
        assert one[:place] == other[:place]
        assert one[place : place + 1] != other[place : place + 1]
