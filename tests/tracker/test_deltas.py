import random

from hypothesis import given
from hypothesis import strategies as st

from tracker.deltas import (
    BLOCK_IDS,
    DIGEST_BYTES,
    PLACE,
    SPAN,
    Chain,
    chunks,
    episode_key,
    expanded,
    longest_hit,
    parts,
)
from tracker.packing import hashed_ids

KEY = episode_key("ep-1")
IDS = st.lists(st.integers(0, 3), max_size=300).map(tuple)


def random_ids(seed: int, count: int) -> tuple[int, ...]:
    dice = random.Random(seed)
    return tuple(dice.randrange(50_000) for _ in range(count))


@given(ids=IDS, cut=st.integers(0, 300))
def test_a_chain_does_not_depend_on_how_its_ids_came(ids: tuple[int, ...], cut: int) -> None:
    whole = Chain(KEY).extend(ids)
    assert Chain(KEY).extend(ids[:cut]).extend(ids[cut:]).digests == whole.digests
    assert len(whole.digests) == len(ids) // BLOCK_IDS


def test_a_copied_chain_grows_by_itself() -> None:
    chain = Chain(KEY).extend(range(100))
    chain.copy().extend(range(100))
    assert chain.digests == Chain(KEY).extend(range(100)).digests


def test_equal_ids_have_other_digests_in_another_episode() -> None:
    other = episode_key("ep-2")
    assert Chain(KEY).extend(range(64)).digests != Chain(other).extend(range(64)).digests


@given(known=st.integers(0, 20), total=st.integers(0, 20))
def test_the_longest_hit_is_the_last_known_block(known: int, total: int) -> None:
    digests = [bytes([number]) * DIGEST_BYTES for number in range(total)]
    places = {digest: b"" for digest in digests[:known]}
    assert longest_hit(digests, places) == min(known, total)


def test_the_same_ids_are_cut_the_same_way_at_any_offset() -> None:
    body = random_ids(1, 2000)
    here = {chunk.digest for chunk in chunks(KEY, hashed_ids(body), 0)}
    there = chunks(KEY, hashed_ids(random_ids(2, 37) + body), 0)
    assert len(there) >= 10
    assert sum(chunk.digest in here for chunk in there) >= len(there) - 2


@given(earlier=IDS, head=IDS, tail=IDS, start=st.integers(0, 300))
def test_parts_expand_to_the_prompt_they_tell(
    earlier: tuple[int, ...], head: tuple[int, ...], tail: tuple[int, ...], start: int
) -> None:
    """Whatever earlier sequence a prompt shares parts with, and wherever."""
    prompt = head + earlier[start:] + tail
    chain, places = Chain(KEY).extend(earlier), {}
    for number, digest in enumerate(chain.digests, 1):
        places[digest] = PLACE.pack(0, *SPAN.unpack(SPAN.pack(0, 0, number * BLOCK_IDS)))
    for chunk in chunks(KEY, hashed_ids(earlier), 0):
        places[chunk.digest] = PLACE.pack(0, 0, chunk.start, chunk.end - chunk.start)
    mine = Chain(KEY).extend(prompt).digests
    known = longest_hit(mine, places)
    pieces = chunks(KEY, hashed_ids(prompt), known * BLOCK_IDS)
    told = parts(prompt, places[mine[known - 1]] if known else None, pieces, places)
    assert expanded(told, {(0, 0): earlier}) == prompt
