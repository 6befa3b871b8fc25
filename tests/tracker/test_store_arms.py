"""What an episode with an arm gets, on memory and on a real Redis."""

from __future__ import annotations

import pytest

from tests.tracker.call_strategies import call_of, intent
from tracker.store import Begun, EpisodeStore, Routing
from tracker.types import Arm, EpisodeHead, EpisodeStatus

CANARY = EpisodeHead(episode_id="ep-1", arms=(Arm(policy="solver", version=5, is_canary=True, share=0.5),))
STABLE = EpisodeHead(episode_id="ep-1", arms=(Arm(policy="solver", version=5, is_canary=False, share=0.5),))


async def called(store: EpisodeStore, number: int, pin: str = "episode", policy: str = "solver") -> Begun:
    wanted = intent(f"c{number}", policy=policy)
    begun = await store.begin_call(wanted, pin, None)
    assert await store.end_call(call_of(wanted, begun.index))
    return begun


@pytest.mark.parametrize("pin", ["episode", "call"])
async def test_an_arm_gets_what_it_says_for_all_its_calls(store: EpisodeStore, pin: str) -> None:
    await store.set_routing("solver", Routing(active=4))
    await store.open(CANARY)
    assert [(await called(store, number, pin)).version for number in range(3)] == [5, 5, 5]
    assert await store.pins("solver") == {5: 1}
    assert (await called(store, 9, pin, "other")).version == 0
    assert (await store.head("ep-1")).arms == CANARY.arms
    await store.finish("ep-1", EpisodeStatus.OK)
    assert await store.seal("ep-1")
    assert await store.pins("solver") == {}


async def test_the_stable_arm_gets_the_active_version(store: EpisodeStore) -> None:
    await store.set_routing("solver", Routing(active=4))
    await store.open(STABLE)
    assert (await called(store, 0)).version == 4


@pytest.mark.parametrize("pin", ["episode", "call"])
async def test_a_withdrawn_canary_moves_its_episodes_to_the_active_version(store: EpisodeStore, pin: str) -> None:
    await store.set_routing("solver", Routing(active=4))
    await store.open(CANARY)
    await called(store, 0, pin)
    await store.set_routing("solver", Routing(active=4, withdrawn=(5,)))
    moved = await called(store, 1, pin)
    assert (moved.version, moved.repinned_from) == (4, 5)
    assert (await called(store, 2, pin)).repinned_from is None
    assert await store.pins("solver") == {4: 1}


async def test_an_episode_that_had_no_call_yet_gets_the_active_version_once_its_canary_is_gone(
    store: EpisodeStore,
) -> None:
    await store.set_routing("solver", Routing(active=4, withdrawn=(5,)))
    await store.open(CANARY)
    begun = await called(store, 0)
    assert (begun.version, begun.repinned_from) == (4, None)


@pytest.mark.parametrize("active", [5, 6])
async def test_a_promoted_canary_is_a_version_like_any_other(store: EpisodeStore, active: int) -> None:
    await store.set_routing("solver", Routing(active=active))
    await store.open(CANARY)
    assert (await called(store, 0)).version == active
