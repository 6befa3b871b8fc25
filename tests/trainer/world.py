"""A ledger with groups of archived episodes, and a gateway of which only the publishing of versions exists."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec
from safetensors.torch import load_file

from tests.trainer.models import VOCABULARY, tiny_model, tiny_tokenizer
from tracker.clock import SystemClock
from tracker.codec import encode_calls
from tracker.ledger import SqlLedger
from tracker.receipts import seal
from tracker.types import Call, Choice, EpisodeHead, EpisodeRow, EpisodeStatus, Reward, RunSettings, VersionState
from trainer.config import TrainerSettings
from trainer.feed import Feed
from trainer.grpo import PolicyTrainer
from trainer.loop import Loop
from trainer.stopping import Stop


def call_of(
    episode: str, index: int, prompt: list[int], sampled: list[int], version: int = 0, adapter: str = ""
) -> Call:
    return Call(
        call_id=f"{episode}-{index}",
        episode_id=episode,
        index=index,
        policy="solver",
        version=version,
        adapter_digest=adapter,
        prompt_ids=tuple(prompt),
        choices=(Choice(index=0, sampled_ids=tuple(sampled), logprobs=(-1.5,) * len(sampled), finish_reason="stop"),),
    )


async def adapter_of(ledger: SqlLedger, version: int) -> str:
    """The digest that the version was registered with; none for the base model."""
    return next((known.digest for known in await ledger.list_versions("solver") if known.version == version), "")


async def add_group(ledger: SqlLedger, task: str, rewards: list[float], version: int = 0, run: str = "default") -> None:
    """Episodes of two calls each, rewarded, archived and settled."""
    chance = random.Random(task)
    now = SystemClock().now_ms()
    for number, reward in enumerate(rewards):
        episode = f"ep-{task}-{number}"
        head = EpisodeHead(episode_id=episode, task=task, run=run, created_ms=now)
        head, _ = await ledger.create_episode(head, None, "")
        first = [chance.randrange(VOCABULARY) for _ in range(4)]
        sampled = [chance.randrange(VOCABULARY) for _ in range(3)]
        adapter = await adapter_of(ledger, version)
        calls = (
            call_of(episode, 0, [1, 2, 3, *first], sampled, version, adapter),
            call_of(episode, 1, [1, 2, 3, *first, *sampled, 5], [chance.randrange(VOCABULARY)], version, adapter),
        )
        event = Reward(reward_id=f"r-{episode}", seq=0, episode_id=episode, value=reward, created_ms=now)
        await ledger.add_reward("default", event, None, "")
        blob = encode_calls(calls)
        digest, receipts = seal(calls)
        row = EpisodeRow(
            head=head, status=EpisodeStatus.OK, versions={"solver": version}, num_calls=2, ended_ms=now, archived_ms=now
        )
        assert await ledger.archive_episode(row, blob, digest, receipts)
    await ledger.settle_groups(now)


def run_settings(group_size: int = 2, **fields: object) -> RunSettings:
    return msgspec.convert({"run": "default", "group_size": group_size, "reward_grace_s": 0.0, **fields}, RunSettings)


def check_folder(folder: Path, digest: str) -> None:
    """What every gateway checks of what it is asked to serve."""
    assert {path.name for path in folder.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    assert hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest() == digest
    assert load_file(folder / "adapter_model.safetensors")


class World:
    """One trainer's surroundings: settings, database, gateway, and what was said."""

    def __init__(self, settings: TrainerSettings) -> None:
        self.settings = settings
        self.stop = Stop()
        self.said: list[str] = []
        self.posts: list[dict[str, object]] = []
        self.answers: list[httpx.Response] = []
        """Given instead of a swap, first one first."""
        self.feed = Feed(settings, SystemClock(), "test", self.stop, self.said.append)
        self.ledger: SqlLedger = self.feed._ledger
        self.run = self.feed._run
        assert self.feed.acquire()

    def close(self) -> None:
        self.feed.close()

    async def gateway(self, request: httpx.Request) -> httpx.Response:
        """Check what is published and make it the active version, as the gateway does."""
        if self.answers:
            return self.answers.pop(0)
        body = json.loads(request.content)
        self.posts.append(body)
        check_folder(self.settings.stores.adapters_dir / body["folder"], body["digest"])
        version = await self.ledger.find_version("solver", body["folder"])
        assert version is not None
        await self.ledger.put_version(msgspec.structs.replace(version, state=VersionState.ACTIVE))
        await self.ledger.activate("solver", version.version, body["epoch"])
        return httpx.Response(201, json={"policy": "solver", "version": version.version, "state": "active"})

    def train(self, commit: Callable[[Loop], None] = lambda _: None) -> None:
        """Run the loop to its end; `commit` may change the loop before it starts."""
        loop = Loop(self.settings, self.feed, self.stop, self.said.append, httpx.MockTransport(self.gateway))
        commit(loop)
        loop.run(lambda loop: PolicyTrainer(self.settings, tiny_model(), tiny_tokenizer(), loop.steps(), loop.commit))
