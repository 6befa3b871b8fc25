"""`hone rescore`: a judge scores the archived episodes of a run; what that would change is told, and posted if asked.

Scores are kept in the data folder as they come, so that a judge is asked once for each episode whatever stops the work.
Posting is by an idempotency key for each name and episode: again is no harm, another score under the same name is
refused. The rewards end nothing. A new name is posted with the weight 0, beside what counts, or with the one that is
asked for; a frozen run takes the weight of a name once, from 0 on (`registry.py`).
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, TextIO

import msgspec
from msgspec.structs import replace

from gateway.auditing import act_of_desk, attempted
from gateway.desk import open_ledger
from gateway.paging import archived_of, groups_of, pages
from gateway.rescoring.effect import Change, Effect, effect_on, rank_correlation
from gateway.rescoring.judges import Judge, open_judge
from gateway.rescoring.told import told_of
from tracker.clock import SystemClock
from tracker.errors import Conflict, CorruptRecord, NotFound
from tracker.ledger import SqlLedger
from tracker.settings import StoreSettings
from tracker.types import Group, Record, Reward
from tracker.wholes import WholeEpisode

PAGE: Final = 50
FOLDER: Final = "rescoring"
MAX_SOURCE: Final = 512


class Rescoring(Record, frozen=True):
    """What is asked for."""

    run: str
    judge: str
    name: str
    tenant: str
    weight: float = 1.0
    """What the effect is told for."""
    applies: bool = False
    counts: bool = False
    """Whether the posted rewards count, with that weight."""
    concurrency: int = 4
    fresh: bool = False
    """Forget what the judge said before."""


class Score(Record, frozen=True):
    """What a judge said of an episode."""

    episode_id: str
    score: float | None


class Rescored(Record, frozen=True):
    """What came of it."""

    num_scored: int
    num_unreadable: int
    effect: Effect
    num_posted: int = 0
    num_late: int = 0
    """Of the posted ones, those whose group was taken, trained or skipped before."""
    weight: float | None = None
    """That the name has in the run now; `None` where nothing was posted."""


Say = Callable[[int], None]


async def rescore(stores: StoreSettings, asked: Rescoring, cwd: Path, say: Say) -> Rescored:
    """Score, compare, and post if asked to. Raises `BadRequest` for a judge that answers no score."""
    scores = ScoreFile(stores.data_dir / FOLDER, asked)
    async with open_ledger(stores) as ledger:
        run = await ledger.get_run(asked.tenant, asked.run)
        num_unreadable = await _score_all(ledger, asked, scores, cwd, say)
        told = scores.known
        change, effect = Change(run=run, name=asked.name, weight=asked.weight), Effect()
        async for group, rewards in _groups(ledger, asked):
            effect = effect.plus(effect_on(group, rewards, told, change))
        pairs = [pair async for pair in _pairs(ledger, asked, told)]
        done = Rescored(
            num_scored=len(told),
            num_unreadable=num_unreadable,
            effect=replace(effect, rank_correlation=rank_correlation(pairs)),
        )
        return await _apply(ledger, asked, told, done) if asked.applies else done


async def _weight(ledger: SqlLedger, asked: Rescoring) -> float:
    """Have the name weigh what is asked for, or nothing yet; what it weighs then."""
    known = (await ledger.get_run(asked.tenant, asked.run)).reward_weights
    if asked.name in known and not asked.counts:
        return known[asked.name]
    weight = asked.weight if asked.counts else 0.0
    act = act_of_desk(asked.tenant, "run.weigh", asked.run, {"name": asked.name, "weight": weight})
    async with attempted(ledger, act):
        await ledger.weigh_reward(asked.tenant, asked.run, asked.name, weight, act)
    return weight


class ScoreFile:
    """The scores so far, a line each; a line that was cut off is judged again."""

    def __init__(self, folder: Path, asked: Rescoring) -> None:
        named = msgspec.json.encode((asked.tenant, asked.run, asked.judge))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = folder / f"{hashlib.sha256(named).hexdigest()[:24]}.jsonl"
        if asked.fresh:
            self._path.unlink(missing_ok=True)
        self.known = dict(self._read())

    def open(self) -> TextIO:
        """For appending, on a line of its own."""
        file = self._path.open("a")
        if self._path.stat().st_size and not self._path.read_bytes().endswith(b"\n"):
            file.write("\n")
        return file

    def add(self, file: TextIO, score: Score) -> None:
        file.write(msgspec.json.encode({"episode_id": score.episode_id, "score": score.score}).decode() + "\n")
        file.flush()
        self.known[score.episode_id] = score.score

    def _read(self) -> Iterable[tuple[str, float | None]]:
        lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        for line in lines:
            try:
                score = msgspec.json.decode(line, type=Score)
            except msgspec.DecodeError:
                continue
            yield score.episode_id, score.score


async def _score_all(ledger: SqlLedger, asked: Rescoring, scores: ScoreFile, cwd: Path, say: Say) -> int:
    """Have every archived episode judged that was not; how many could not be read."""
    num_unreadable = 0
    judge = open_judge(asked.judge, cwd)
    try:
        with scores.open() as file:
            async for rows, _ in pages(archived_of(ledger, asked.tenant, asked.run), size=PAGE):
                wholes = await ledger.whole_episodes(asked.tenant, [row.head.episode_id for row in rows])
                waiting = [whole for whole in wholes if whole.row.head.episode_id not in scores.known]
                for start in range(0, len(waiting), asked.concurrency):
                    part = waiting[start : start + asked.concurrency]
                    num_unreadable += await _score_some(judge, part, scores, file)
                    say(len(scores.known))
    finally:
        await judge.close()
    return num_unreadable


async def _score_some(judge: Judge, wholes: Sequence[WholeEpisode], scores: ScoreFile, file: TextIO) -> int:
    """Judge some episodes at once; what was scored is kept before anything that went wrong is raised."""
    results = await asyncio.gather(*(_score_one(judge, whole) for whole in wholes), return_exceptions=True)
    for result in results:
        if isinstance(result, Score):
            scores.add(file, result)
    wrong = [result for result in results if isinstance(result, BaseException)]
    if wrong:
        raise wrong[0]
    return sum(result is None for result in results)


async def _score_one(judge: Judge, whole: WholeEpisode) -> Score | None:
    try:
        told = await asyncio.to_thread(told_of, whole)
    except CorruptRecord:
        return None
    return Score(episode_id=whole.row.head.episode_id, score=await judge.score(told))


async def _pairs(
    ledger: SqlLedger, asked: Rescoring, scores: dict[str, float | None]
) -> AsyncGenerator[tuple[float, float]]:
    """(reward so far, new score) of every episode that has both."""
    async for rows, _ in pages(archived_of(ledger, asked.tenant, asked.run)):
        for row in rows:
            score = scores.get(row.head.episode_id)
            if row.reward is not None and score is not None:
                yield row.reward, score


async def _groups(ledger: SqlLedger, asked: Rescoring) -> AsyncGenerator[tuple[Group, dict[str, list[Reward]]]]:
    async for groups, _ in pages(groups_of(ledger, asked.tenant, run=asked.run), size=PAGE):
        for group in groups:
            named = [member.episode_id for member in group.members]
            yield group, await ledger.rewards_of_episodes(named)


async def _apply(ledger: SqlLedger, asked: Rescoring, scores: dict[str, float | None], done: Rescored) -> Rescored:
    weight = await _weight(ledger, asked)
    num_posted = num_late = 0
    for episode_id, score in scores.items():
        named = _reward(asked, episode_id, score), _key(asked, episode_id), _digest(score)
        try:
            stored, is_new = await ledger.add_reward(asked.tenant, *named)
        except NotFound:
            continue  # it was deleted since it was judged
        except Conflict as error:
            told = (
                f"Episode {episode_id} has another score under the name {asked.name!r}: give this one its own --name."
            )
            raise Conflict(told) from error
        num_posted += is_new
        num_late += stored.late
    told = {"name": asked.name, "judge": asked.judge[:MAX_SOURCE], "posted": num_posted}
    await ledger.add_act(act_of_desk(asked.tenant, "run.rescore", asked.run, told))
    return replace(done, num_posted=num_posted, num_late=num_late, weight=weight)


def _reward(asked: Rescoring, episode_id: str, score: float | None) -> Reward:
    return Reward(
        reward_id=f"rew-{secrets.token_hex(16)}",
        seq=0,
        episode_id=episode_id,
        name=asked.name,
        value=score,
        final=False,
        source=f"rescore: {asked.judge}"[:MAX_SOURCE],
        created_ms=SystemClock().now_ms(),
    )


def _key(asked: Rescoring, episode_id: str) -> str:
    named = msgspec.json.encode((asked.run, asked.name, episode_id))
    return f"rescore:{hashlib.sha256(named).hexdigest()}"


def _digest(score: float | None) -> str:
    return hashlib.sha256(msgspec.json.encode(score)).hexdigest()
