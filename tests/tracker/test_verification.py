"""A stored batch is checked again: what is proven is counted, what is gone is said, nothing is trained twice."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tests.tracker.building import RUN, call, chain_of, choice
from tracker.errors import CorruptRecord
from tracker.evidence import Archived, Checked, Fault
from tracker.manifests import (
    NO_MANIFEST,
    Coverage,
    Manifest,
    coverage_of,
    decode_manifest,
    encode_manifest,
    first_change,
    manifest_digest,
    manifest_of,
    stored_digest,
)
from tracker.receipts import decode_receipts, seal
from tracker.samples import rows_of
from tracker.shares import Shares, VersionGap, shares_of, total
from tracker.types import Batch, Call, CallCredit, CallState
from tracker.verification import Across, Finding, Stored, verify

CALLS = chain_of(2)


def archived(calls: tuple[Call, ...] = CALLS) -> Archived:
    chain, receipts = seal(calls)
    return Archived(episode_id="e", chain=chain, calls=calls, receipts=decode_receipts(receipts))


def batch(step: int = 1, calls: tuple[Call, ...] = CALLS, metrics: bytes = b"{}") -> Batch:
    """A batch that was trained on these calls."""
    rows = rows_of(calls, RUN, "p")
    credit = tuple(CallCredit(episode_id="e", call_id=row.call_id, advantage=0.5) for row in rows)
    made = Batch(
        batch_id=f"b{step}", policy="p", step=step, epoch=0, fence=1, credit=credit, state="trained", metrics=metrics
    )
    coverage = coverage_of([(archived(calls), RUN)], "p", {("e", row.call_id, row.choice) for row in rows})
    num_tokens = sum(len(row.sampled_ids) for row in rows)
    checked = Checked(context=num_tokens, sampled=num_tokens)
    manifest = manifest_of(made, "dapo", [(row, 0.5) for row in rows], {"e": archived(calls)}, checked, coverage)
    return replace(made, manifest=encode_manifest(manifest))


def stored(one: Batch, calls: tuple[Call, ...] = CALLS) -> Stored:
    return Stored(batch=one, episodes={"e": (archived(calls), RUN)})


def lines(finding: Finding) -> list[str]:
    return [fault.line() for fault in finding.faults]


def test_a_whole_batch_is_proven_token_by_token():
    finding = verify(stored(batch()))
    assert finding.faults == ()
    assert (finding.shares.trained, finding.shares.context, finding.shares.sampled) == (4, 4, 4)
    assert finding.shares.view()["coverage"] == 1.0


def test_tokens_under_another_context_are_sampled_faithful_and_not_context_faithful():
    changed = (CALLS[0], replace(CALLS[1], prompt_ids=(1, 50, 99, 98, 7)))
    finding = verify(replace(stored(batch()), episodes={"e": (replace(archived(), calls=changed), RUN)}))
    assert (finding.shares.trained, finding.shares.context, finding.shares.sampled) == (4, 2, 4)
    assert finding.faults


def test_other_tokens_are_neither():
    changed = (CALLS[0], replace(CALLS[1], choices=(choice([51, 98]),)))
    finding = verify(replace(stored(batch()), episodes={"e": (replace(archived(), calls=changed), RUN)}))
    assert (finding.shares.trained, finding.shares.context, finding.shares.sampled) == (4, 2, 2)


def test_an_episode_that_was_deleted_on_request_is_no_fault_and_proves_nothing():
    finding = verify(replace(stored(batch()), episodes={}, deleted=frozenset({"e"})))
    assert finding.faults == ()
    assert (finding.num_deleted, finding.shares.context, finding.shares.view()["context_faithful"]) == (4, 0, 0.0)


def test_an_episode_that_is_gone_or_does_not_open_is_a_fault():
    gone = replace(stored(batch()), episodes={})
    assert lines(verify(gone)) == ["episode e: there is no archive of it"]
    broken = replace(gone, troubles=(Fault(what="it does not decode", episode_id="e"),))
    assert lines(verify(broken)) == ["episode e: it does not decode"]
    assert verify(broken).shares.context == 0


def test_a_trained_batch_without_a_manifest_fails_and_counts_as_not_checked():
    finding = verify(stored(replace(batch(metrics=b'{"trained_tokens": 4}'), manifest=NO_MANIFEST)))
    assert lines(finding) == ["there is no manifest"]
    assert (finding.shares.trained, finding.shares.context) == (4, 0)


@pytest.mark.parametrize(("state", "manifest"), [("taken", NO_MANIFEST), ("dropped", NO_MANIFEST), ("dropped", b"x")])
def test_a_batch_that_was_not_trained_on_has_nothing_to_check(state: str, manifest: bytes):
    finding = verify(stored(replace(batch(), state=state, manifest=manifest)))
    assert (finding.faults, finding.is_trained_on) == ((), False)


def test_a_batch_killed_between_its_step_and_its_mark_is_checked_by_the_manifest_stored_before():
    assert verify(stored(replace(batch(), state="taken"))).shares.context == 4


def test_a_digest_that_was_written_down_elsewhere_has_to_be_the_same():
    copies = {"version 3": "00"}
    (line,) = lines(verify(replace(stored(batch()), copies=copies)))
    assert line.startswith("the manifest was edited: version 3 names 00, it is ")


def test_the_number_of_tokens_that_the_step_counted_has_to_be_the_manifests():
    (line,) = lines(verify(stored(batch(metrics=b'{"trained_tokens": 5}'))))
    assert line == "the step trained 5 tokens, the manifest names 4"


def test_a_call_that_must_not_be_trained_is_a_fault():
    calls = (CALLS[0], replace(CALLS[1], state=CallState.ABORTED))
    (line,) = lines(verify(stored(batch(), calls)))
    assert line == "episode e, call e-1, choice 0: it is excluded (client_gone) and was trained"


def across(batches: Sequence[Batch], asked: Sequence[Batch] | None = None) -> dict[str, tuple[Fault, ...]]:
    told = Across(batches if asked is None else asked)
    for one in batches:
        told.tell([one])
    return told.faults


def test_a_token_is_trained_once_and_a_step_is_taken_once():
    other = (call("other", 2, [5], [6]),)
    assert across([batch(1), batch(2, other)]) == {}
    twice = across([batch(1), batch(2)])
    assert [fault.line() for fault in twice["b2"]] == [
        "episode e, call e-0, choice 0: trained twice, before in batch b1",
        "episode e, call e-1, choice 0: trained twice, before in batch b1",
    ]
    assert across([batch(1), batch(2)], asked=[batch(2)]) == twice
    assert across([batch(1), batch(2)], asked=[batch(3, other)]) == {}
    same_step = across([batch(1), replace(batch(2, other), step=1)])
    assert [fault.line() for fault in same_step["b2"]] == ["step 1 of epoch 0 was taken by batch b1 too"]
    assert across([replace(batch(1), state="dropped"), batch(2)]) == {}
    assert across([batch(1), replace(batch(2), policy="q")]) == {}


def test_what_is_not_trained_is_counted_by_reason():
    calls = (
        *CALLS,
        call("gone", 2, [1], [2, 3, 4], state=CallState.ABORTED),
        call("uncredited", 3, [1], [9]),
        call("judge", 4, [1], [2], policy=None),
    )
    trained = {("e", "e-0", 0), ("e", "e-1", 0)}
    assert coverage_of([(archived(calls), RUN)], "p", trained) == Coverage(
        sampled_tokens=8, excluded={"client_gone": 3, "too_old": 1}
    )
    assert coverage_of([(archived(calls), RUN)], "p", set()).excluded == {"client_gone": 3, "no_credit": 5}


def test_shares_add_up_over_batches_and_gaps_by_tokens():
    gap = (
        b'{"gap_by_version": {"1": {"mean": 0.1, "maximum": 0.5, "ratio": 1.0, "num_tokens": 4}}, "trained_tokens": 4}'
    )
    wider = gap.replace(b"0.1", b"0.4").replace(b'"num_tokens": 4', b'"num_tokens": 2')
    summed = total([shares_of(batch(metrics=gap)), shares_of(batch(metrics=wider))])
    assert summed.gaps["1"] == VersionGap(mean=pytest.approx(0.2), maximum=0.5, ratio=pytest.approx(1.0), num_tokens=6)
    assert summed.view() | {"gap_by_version": None} == {
        "batches": 2,
        "trained_tokens": 8,
        "context_faithful": 1.0,
        "sampled_faithful": 1.0,
        "sampled_tokens": 8,
        "coverage": 1.0,
        "excluded_tokens": {},
        "gap_by_version": None,
    }


def test_tokens_that_no_valid_manifest_speaks_of_were_not_checked():
    unproven = replace(batch(metrics=b'{"trained_tokens": 4}'), manifest=b"{}")
    assert total([shares_of(batch()), shares_of(unproven)]).view()["context_faithful"] == 0.5
    assert Shares().view()["context_faithful"] is None


@pytest.mark.parametrize("metrics", [b"", b"[]", b'{"gap_by_version": 3}', b'{"gap_by_version": {"1": {"mean": 1}}}'])
def test_metrics_that_are_none_of_ours_say_nothing(metrics: bytes):
    assert shares_of(batch(metrics=metrics)).gaps == {}


def manifest() -> Manifest:
    return decode_manifest(batch().manifest)


def test_a_manifest_is_read_back_as_it_was_and_names_its_digest():
    assert encode_manifest(manifest()) == batch().manifest
    assert stored_digest(batch().manifest) == manifest_digest(manifest())
    assert stored_digest(NO_MANIFEST) is None


@pytest.mark.parametrize(
    ("bytes_", "line"),
    [
        (NO_MANIFEST, "no manifest"),
        (b"{}", "does not decode"),
        (b"\xff", "does not decode"),
        (batch().manifest.replace(b'"schema":1', b'"schema":2'), "schema 2; this Hone reads 1"),
        (batch().manifest.replace(b'"step":1', b'"step":2'), "breaks its own digest"),
    ],
)
def test_a_manifest_that_cannot_be_trusted_is_refused(bytes_: bytes, line: str):
    with pytest.raises(CorruptRecord, match=line):
        decode_manifest(bytes_)


def test_coverage_may_change_between_two_tries_of_a_batch_and_nothing_else_may():
    assert first_change(manifest(), replace(manifest(), coverage=Coverage(sampled_tokens=99))) == ""
    assert first_change(manifest(), replace(manifest(), loss="grpo")) == "loss differs"
    assert first_change(manifest(), replace(manifest(), episodes={})) == "episodes differ"
