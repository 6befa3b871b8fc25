"""Receipts: equal calls have equal digests, and whatever identifies a trained token changes them."""

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracker.building import call, choice, episodes
from tracker.receipts import call_digest, chain, receipt_of
from tracker.types import Call, Sampling

BASE = call("a", 0, [1, 2], [3, 4])


def test_a_digest_has_32_bytes_and_is_the_same_every_time():
    assert len(call_digest(BASE)) == 32
    assert call_digest(BASE) == call_digest(call("a", 0, [1, 2], [3, 4]))


@pytest.mark.parametrize(
    "changes",
    [
        {"call_id": "b"},
        {"policy": None},
        {"policy": "q"},
        {"version": 1},
        {"adapter_digest": "ab"},
        {"engine": "vllm 1"},
        {"prompt_ids": (1, 2, 3)},
        {"prompt_ids": (2, 1)},
        {"choices": (choice([3, 5]),)},
        {"choices": (choice([3, 4], [-0.125, -0.5]),)},
        {"choices": (*BASE.choices, choice([3, 4], index=1))},
        {"choices": ()},
        {"sampling": Sampling(temperature=0.5)},
        {"sampling": Sampling(seed=0)},
        {"sampling": Sampling(max_tokens=0)},
        {"sampling": Sampling(biased=True)},
    ],
)
def test_a_change_of_tokens_context_version_or_sampling_changes_the_digest(changes: dict[str, object]):
    assert call_digest(msgspec.structs.replace(BASE, **changes)) != call_digest(BASE)


@pytest.mark.parametrize("changes", [{"index": 7}, {"messages": (b"1",)}, {"ended_ms": 5}, {"detail": "x"}])
def test_what_a_receipt_does_not_claim_does_not_change_it(changes: dict[str, object]):
    assert receipt_of(msgspec.structs.replace(BASE, **changes)) == receipt_of(BASE)


def test_a_number_written_as_int_or_float_is_the_same_number():
    whole = msgspec.structs.replace(BASE, sampling=Sampling(temperature=1, top_p=1))
    assert call_digest(whole) == call_digest(BASE)


@given(episodes())
def test_storing_log_probabilities_as_doubles_keeps_every_digest(calls: list[Call]):
    for made in calls:
        stored = tuple(
            msgspec.structs.replace(
                item,
                logprobs=struct.unpack(
                    f"<{len(item.logprobs)}d", struct.pack(f"<{len(item.logprobs)}d", *item.logprobs)
                ),
            )
            for item in made.choices
        )
        assert call_digest(msgspec.structs.replace(made, choices=stored)) == call_digest(made)


@given(
    st.lists(st.binary(min_size=32, max_size=32), max_size=5), st.lists(st.binary(min_size=32, max_size=32), max_size=5)
)
def test_two_chains_are_equal_only_for_the_same_digests_in_the_same_order(left: list[bytes], right: list[bytes]):
    assert (chain(left) == chain(right)) is (left == right)
