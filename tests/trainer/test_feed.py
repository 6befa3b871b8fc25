"""What two trainers, or one after another, are fed with from one database."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.tracker.building import call
from tracker.clock import SystemClock
from tracker.codec import encode_calls
from tracker.receipts import seal
from tracker.settings import LoraSettings, PolicySettings, StoreSettings
from tracker.types import Credit, EpisodeHead, EpisodeRow, EpisodeStatus, Reward, RunSettings
from trainer.config import TrainerSettings
from trainer.feed import Feed
from trainer.steps import FamilyShare, Step
from trainer.stopping import Stop

pytestmark = pytest.mark.slow
POLICIES = ("solver", "checker")
RUN = RunSettings(run="default", group_size=2, reward_grace_s=0.0, credit=Credit(std=False))
numbers = itertools.count()


@contextmanager
def feed_of(folder: Path, policy: str, said: list[str] | None = None) -> Iterator[Feed]:
    lora = LoraSettings(r=4)
    policies = tuple(PolicySettings(name=name, model="unused", lora=lora) for name in POLICIES)
    stores = StoreSettings(data_dir=folder, database_url=f"sqlite:///{folder / 'hone.db'}", policies=policies)
    settings = TrainerSettings(stores=stores, policy=policies[POLICIES.index(policy)], poll_s=0.01)
    say = (said if said is not None else []).append
    with closing(Feed(settings, SystemClock(), policy, Stop(), say)) as feed:
        assert feed.acquire()
        yield feed


async def add_group(feed: Feed, task: str, rewards: Sequence[float]) -> list[str]:
    """Episodes in which both agents were called once, archived and settled; their ids."""
    ledger, now = feed._ledger, SystemClock().now_ms()
    episodes = [f"ep-{next(numbers)}" for _ in rewards]
    for episode, reward in zip(episodes, rewards, strict=True):
        head, _ = await ledger.create_episode(EpisodeHead(episode_id=episode, task=task, created_ms=now), None, "")
        calls = tuple(
            call(f"{episode}-{policy}", at, (1, 2, at), (7, 99), episode_id=episode, policy=policy)
            for at, policy in enumerate(POLICIES)
        )
        await ledger.add_reward("default", reward_of(episode, reward), None, "")
        row = EpisodeRow(
            head=head, status=EpisodeStatus.OK, versions=dict.fromkeys(POLICIES, 0), ended_ms=now, archived_ms=now
        )
        assert await ledger.archive_episode(row, encode_calls(calls), *seal(calls))
    await ledger.settle_groups(now)
    return episodes


def reward_of(episode: str, value: float) -> Reward:
    return Reward(reward_id=f"r-{next(numbers)}", seq=0, episode_id=episode, value=value)


def next_step(feed: Feed) -> Step | None:
    """The next step; without one, nothing after the first looks."""
    looks = iter([True, True])
    return feed.next_step(lambda: next(looks, False))


def test_every_policy_is_credited_by_the_rewards_that_the_first_one_saw(tmp_path: Path):
    with feed_of(tmp_path, "solver") as solver, feed_of(tmp_path, "checker") as checker:
        solver._run(solver._ledger.put_run("default", RUN))
        loser, _ = solver._run(add_group(solver, "t", [0.0, 1.0]))
        first = next_step(solver)
        late, _ = solver._run(solver._ledger.add_reward("default", reward_of(loser, 50.0), None, ""))
        second = next_step(checker)
        assert late.late
        assert first is not None
        assert second is not None
        assert first.advantages == second.advantages == (-0.5, 0.5)
        assert {row.policy for row in first.rows} == {"solver"}
        assert {row.policy for row in second.rows} == {"checker"}


def test_a_cocktail_keeps_its_proportions_over_a_restart_and_says_what_it_waits_for(tmp_path: Path):
    run = msgspec.structs.replace(RUN, families={"a": 2.0, "b": 1.0})
    said: list[str] = []
    shares: list[set[str]] = []
    with feed_of(tmp_path, "solver") as feed:
        feed._run(feed._ledger.put_run("default", run))
        for number in range(4):
            feed._run(add_group(feed, f"a/{number}", [0.0, 1.0]))
        feed._run(add_group(feed, "b/flat", [1.0, 1.0]))
    for _ in range(3):
        with feed_of(tmp_path, "solver", said) as feed:
            step = next_step(feed)
            shares.append({family for family, share in step.families.items() if share.groups} if step else set())
            if step is not None:
                feed.mark_trained(step.batch)
    assert shares == [{"a"}, {"a"}, set()]
    assert any("no_variance" in line for line in said)
    assert any("0 of 1 groups of family b ready in run default" in line for line in said)
    with feed_of(tmp_path, "solver") as feed:
        feed._run(add_group(feed, "b/1", [0.0, 3.0]))
        step = next_step(feed)
        assert step is not None
        assert step.families == {"a": FamilyShare(0, None), "b": FamilyShare(1, 1.5)}
