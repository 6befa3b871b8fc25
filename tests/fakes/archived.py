"""Archived episodes by the thousand, put straight into SQL: what a long run leaves, played by nobody."""

from __future__ import annotations

import json
import random

from sqlalchemy import Connection

from tracker.codec import encode_calls
from tracker.ledger import SqlLedger
from tracker.receipts import seal
from tracker.samples import counts, kinds_of
from tracker.transfers import bring
from tracker.types import (
    Call,
    Choice,
    EpisodeHead,
    EpisodeRow,
    EpisodeState,
    EpisodeStatus,
    GroupState,
    Reward,
    RunSettings,
)
from tracker.vault import Vault
from tracker.wholes import GroupPlace, StoredTimeline, WholeEpisode

BATCH = 500
RUN = RunSettings(run="r", group_size=4)


def episode(number: int, turns: int = 3, words: int = 60, **fields: object) -> WholeEpisode:
    """One of a group of four: a conversation in which each turn goes on from the one before."""
    rng = random.Random(number)
    group, place = divmod(number, RUN.group_size)
    episode_id = f"ep-{number:08d}"
    calls = _calls(rng, episode_id, group, turns, words)
    numbers = counts(calls, RUN)
    head = EpisodeHead(
        episode_id=episode_id, run=RUN.run, task=f"task {group}", group_id=f"grp-{group:08d}", created_ms=1_000 + number
    )
    row = EpisodeRow(
        head=head,
        state=EpisodeState.ARCHIVED,
        status=EpisodeStatus.OK,
        versions={"solver": 1},
        kinds=kinds_of(calls),
        num_calls=numbers.num_calls,
        num_samples=numbers.num_samples,
        ended_ms=2_000 + number,
        archived_ms=2_000 + number,
    )
    chain, receipts = seal(calls)
    timeline = StoredTimeline(
        episode_id=episode_id,
        tenant=head.tenant,
        run=head.run,
        blob=encode_calls(calls),
        digest=chain,
        receipts=receipts,
    )
    reward = Reward(reward_id=f"rew-{number}", seq=1, episode_id=episode_id, value=place / 4, created_ms=2_000)
    seat = GroupPlace(group_id=str(head.group_id), round=0, size=4, state=GroupState.TRAINED, place=place)
    return WholeEpisode(row=row, run=RUN, timeline=timeline, rewards=(reward,), group=seat)


async def fill(ledger: SqlLedger, num_episodes: int, first: int = 0) -> None:
    """Bring so many, many in each transaction."""
    for start in range(first, first + num_episodes, BATCH):
        numbers = range(start, min(start + BATCH, first + num_episodes))
        await ledger.write(_bring_all, numbers)


def _bring_all(connection: Connection, numbers: range) -> None:
    for number in numbers:
        assert bring(connection, episode(number), 2_000, Vault())


def _calls(rng: random.Random, episode_id: str, group: int, turns: int, words: int) -> tuple[Call, ...]:
    prompt = [group % 1000, *range(words)]
    messages = [_message("user", f"question {group} " + "word " * words)]
    calls: list[Call] = []
    for turn in range(turns):
        sampled = [rng.randrange(1000) for _ in range(words)]
        answer = " ".join(map(str, sampled))
        choice = Choice(
            index=0,
            sampled_ids=tuple(sampled),
            logprobs=tuple(-rng.random() for _ in sampled),
            finish_reason="stop",
            message=_message("assistant", answer),
        )
        calls.append(
            Call(
                call_id=f"chatcmpl-{episode_id}-{turn}",
                episode_id=episode_id,
                index=turn,
                policy="solver",
                model="solver",
                version=1,
                prompt_ids=tuple(prompt),
                choices=(choice,),
                messages=tuple(messages),
                request=b'{"model":"solver"}',
                engine="http://engine",
            )
        )
        prompt = [*prompt, *sampled, 7]
        messages = [*messages, choice.message, _message("user", f"and {turn}?")]
    return tuple(calls)


def _message(role: str, content: str) -> bytes:
    return json.dumps({"role": role, "content": content}, separators=(",", ":")).encode()
