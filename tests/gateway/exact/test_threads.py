"""Finding the earlier answer that a conversation goes on from, without reading more than needed."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from gateway.exact.history import Match
from gateway.exact.threads import Threads
from tests.gateway.exact.world import END, Json, asking, call_of, conversation, words
from tracker.errors import Unavailable
from tracker.store import EpisodeStore
from tracker.types import Call

FIRST = call_of([asking("1")], [1], [(words("one"), [11, END])], call_id="c0", index=0)
SECOND = call_of(
    [asking("1"), words("one"), asking("2")], [1, 2], [(words("two"), [12, END])], call_id="c1", index=1, source="c0"
)
MESSAGES = [asking("1"), words("one"), asking("2"), words("two"), asking("3")]


class Stored:
    """A store that counts how often an episode is read."""

    def __init__(self, *calls: Call) -> None:
        self.calls = calls
        self.num_reads = 0

    async def view(self, episode_id: str) -> Any:
        self.num_reads += 1
        if not self.calls:
            raise Unavailable("away")
        return SimpleNamespace(calls=self.calls)


def threads(store: Stored, *noted: Call, **limits: int) -> Threads:
    made = Threads(cast("EpisodeStore", store), **limits)
    for call in noted:
        made.note(call)
    return made


async def found(one: Threads, index: int, messages: Sequence[Json]) -> tuple[str, int, int] | None:
    match: Match | None = await one.find("e", index, conversation(messages))
    return None if match is None else (match.ending.call_id, match.ending.choice, match.num_messages)


async def test_the_longest_conversation_is_gone_on_from_without_a_read() -> None:
    store = Stored()
    assert await found(threads(store, FIRST, SECOND), 2, MESSAGES) == ("c1", 0, 4)
    assert await found(threads(store, FIRST), 1, MESSAGES[:3]) == ("c0", 0, 2)
    assert await found(threads(store), 5, MESSAGES[:1]) is None
    assert store.num_reads == 0


async def test_what_another_process_served_is_read_once() -> None:
    store = Stored(FIRST, SECOND)
    one = threads(store)
    assert await found(one, 2, MESSAGES) == ("c1", 0, 4)
    assert await found(one, 2, MESSAGES) == ("c1", 0, 4)
    assert store.num_reads == 1


async def test_an_edited_answer_costs_no_read_where_every_call_is_known() -> None:
    store = Stored()
    one = threads(store, FIRST, SECOND)
    assert await found(one, 2, [*MESSAGES[:3], words("two!"), asking("3")]) == ("c0", 0, 2)
    assert await found(one, 2, [asking("other"), *MESSAGES[1:]]) is None
    assert store.num_reads == 0


async def test_a_store_that_is_away_is_told() -> None:
    with pytest.raises(Unavailable):
        await found(threads(Stored(), SECOND), 2, MESSAGES[:3])


async def test_of_equal_answers_one_that_nobody_went_on_from_is_taken_then_the_latest() -> None:
    again = msgspec.structs.replace(FIRST, call_id="c9", index=1)
    assert await found(threads(Stored(), FIRST, again), 2, MESSAGES[:3]) == ("c9", 0, 2)
    went_on = msgspec.structs.replace(SECOND, index=2)
    assert await found(threads(Stored(), FIRST, again, went_on), 3, MESSAGES[:3]) == ("c9", 0, 2)
    other = call_of([asking("1"), words("one"), asking("2")], [1], [(words("x"), [4])], index=3, source="c9")
    assert await found(threads(Stored(), FIRST, again, other), 4, MESSAGES[:3]) == ("c0", 0, 2)


async def test_episodes_asked_about_longest_ago_are_forgotten_first() -> None:
    store = Stored(FIRST, SECOND)
    one = threads(store, FIRST, SECOND, max_ids=6)
    other = call_of([asking("1")], [1, 2, 3, 4], [(words("one"), [11, END])], episode_id="f")
    one.note(other)
    assert await found(one, 2, MESSAGES) == ("c1", 0, 4)
    assert store.num_reads == 1


async def test_calls_of_other_policies_are_known_but_never_gone_on_from() -> None:
    store = Stored()
    plain = msgspec.structs.replace(SECOND, prompting=None)
    assert await found(threads(store, FIRST, plain), 2, MESSAGES) == ("c0", 0, 2)
    assert store.num_reads == 0
