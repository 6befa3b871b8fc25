"""`hone export`: reads archived episodes page by page and writes them in a form, part by part.

One page of episodes is in memory at a time, whatever the run holds, newest first; where it is cut is kept with the
parts, so a killed export goes on behind the last one. What is written is what SQL held when its page was read: episodes
that are archived meanwhile are not in it. Only archived episodes of one tenant's run leave, and of those only what is
trained, but for whole episodes, which are no training data. What a row says is left to `forms.py` and `carried.py`.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from gateway.desk import open_ledger
from gateway.exporting.carried import line_of
from gateway.exporting.forms import Form, Row, Wanted, episode_rows, opened
from gateway.exporting.jsonl import JsonLines
from gateway.exporting.parts import Format, Parts, State
from gateway.exporting.preferences import pairs
from gateway.paging import archived_of, groups_of, pages
from tracker.errors import CorruptRecord, SettingsError
from tracker.ledger import SqlLedger
from tracker.settings import StoreSettings
from tracker.types import EpisodeRow, Group, Record
from tracker.wholes import WholeEpisode

PAGE: Final = 50
"""How many episodes, or groups, are read at a time."""
PARQUET: Final = "parquet"
ADVICE: Final = "--format parquet needs pyarrow: pip install '.[export]' in Hone's checkout, or write --format jsonl."
OTHER_KIND: Final = "other_kind"
"""Completions in an export of messages, or the other way around: one file has one kind of prompts."""
UNREADABLE: Final = "unreadable"
REMOVED: Final = "removed"
Say = Callable[[State], None]


class Order(Record, frozen=True):
    """What is to be exported."""

    run: str
    tenant: str
    wanted: Wanted
    format: str = "jsonl"
    part_episodes: int = 500
    """How many episodes a part holds, about."""

    def digest(self) -> str:
        """Equal for equal exports, wherever they are written."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


class Page(Record, frozen=True):
    """A page as rows."""

    rows: tuple[Row, ...]
    num_episodes: int
    left_out: Counter[str]
    cursor: str | None


async def export(stores: StoreSettings, order: Order, out: Path, say: Say, *, is_folder: bool = False) -> State:
    """Write the export; how far it came is told after each part. Raises `NotFound` for a run that is none."""
    parts = Parts(out, format_of(order), is_folder=is_folder)
    async with open_ledger(stores) as ledger:
        await ledger.get_run(order.tenant, order.run)
        with parts.opened(order.digest()) as state:
            if not state.is_through:
                await _write(ledger, order, parts, say)
            await asyncio.to_thread(parts.finish)
    return parts.state


def format_of(order: Order) -> Format:
    """How the files are written. Raises `SettingsError` where a library is missing."""
    if order.format != PARQUET:
        return JsonLines()
    try:
        parquet = importlib.import_module("gateway.exporting.parquet")  # only who wants it needs the library
    except ModuleNotFoundError as error:
        raise SettingsError(ADVICE) from error
    made: Format = parquet.Parquet(order.wanted.form)
    return made


async def _write(ledger: SqlLedger, order: Order, parts: Parts, say: Say) -> None:
    """Gather pages until they make a part."""
    waiting: list[Row] = []
    state, num_waiting = parts.state, 0
    async with aclosing(_pages(ledger, order, state.cursor)) as read:
        async for page in read:
            rows, state = _of_one_kind(page, state)
            waiting += rows
            num_waiting += page.num_episodes
            if num_waiting >= order.part_episodes or page.cursor is None:
                await asyncio.to_thread(parts.add, waiting, replace(state, is_through=page.cursor is None))
                waiting, num_waiting, state = [], 0, parts.state
                say(state)


def _of_one_kind(page: Page, state: State) -> tuple[Sequence[Row], State]:
    """The rows of a page whose prompts are of the same kind as those before, and the state behind it."""
    is_text, rows, left_out = state.is_text, page.rows, Counter(state.left_out) + page.left_out
    if rows and "prompt" in rows[0]:
        is_text = isinstance(rows[0]["prompt"], str) if is_text is None else is_text
        rows = tuple(row for row in rows if isinstance(row["prompt"], str) is is_text)
        if len(rows) < len(page.rows):
            left_out[OTHER_KIND] += len(page.rows) - len(rows)
    return rows, replace(
        state,
        cursor=page.cursor,
        num_rows=state.num_rows + len(rows),
        num_episodes=state.num_episodes + page.num_episodes,
        is_text=is_text,
        left_out=dict(left_out),
    )


async def _pages(ledger: SqlLedger, order: Order, cursor: str | None) -> AsyncGenerator[Page]:
    """The pages of the run from there on; the last has no cursor."""
    if order.wanted.form is Form.DPO:
        listed = pages(groups_of(ledger, order.tenant, run=order.run), cursor=cursor, size=PAGE)
        async for groups, following in listed:
            yield await _page_of_groups(ledger, order, groups, following)
        return
    async for rows, following in pages(archived_of(ledger, order.tenant, order.run), cursor=cursor, size=PAGE):
        yield await _page_of_episodes(ledger, order, rows, following)


async def _page_of_episodes(
    ledger: SqlLedger, order: Order, found: Sequence[EpisodeRow], following: str | None
) -> Page:
    wholes = await ledger.whole_episodes(order.tenant, [row.head.episode_id for row in found])
    rows, left_out = await asyncio.to_thread(_rows, wholes, order.wanted)
    return Page(rows=tuple(rows), num_episodes=len(wholes), left_out=left_out, cursor=following)


async def _page_of_groups(ledger: SqlLedger, order: Order, groups: Sequence[Group], following: str | None) -> Page:
    """Pairs of the members that count in their group."""
    rows: list[Row] = []
    left_out, num_episodes = Counter[str](), 0
    for group in groups:
        members = [member.episode_id for member in group.members if member.member]
        wholes = await ledger.whole_episodes(order.tenant, members)
        rows += await asyncio.to_thread(_pairs, wholes, order.wanted, left_out)
        num_episodes += len(wholes)
    return Page(rows=tuple(rows), num_episodes=num_episodes, left_out=left_out, cursor=following)


def _rows(wholes: Sequence[WholeEpisode], wanted: Wanted) -> tuple[list[Row], Counter[str]]:
    left_out = Counter[str]()
    rows: list[Row] = []
    for whole in wholes:
        try:
            rows += [_carried(whole, left_out)] if wanted.form is Form.EPISODES else _told(whole, wanted, left_out)
        except CorruptRecord:
            left_out[UNREADABLE] += 1
    return [row for row in rows if row], left_out


def _told(whole: WholeEpisode, wanted: Wanted, left_out: Counter[str]) -> list[Row]:
    return list(episode_rows(opened(whole), wanted, left_out))


def _carried(whole: WholeEpisode, left_out: Counter[str]) -> Row:
    """A whole episode; of one that something was removed from nobody could check what it was."""
    if whole.row.removed:
        left_out[REMOVED] += 1
        return {}
    line = line_of(whole, whole.timeline.opened())
    fields: dict[str, Any] = dict(msgspec.json.decode(line, type=dict[str, msgspec.Raw]))
    return fields


def _pairs(wholes: Sequence[WholeEpisode], wanted: Wanted, left_out: Counter[str]) -> list[Row]:
    episodes = [opened(whole) for whole in wholes if not whole.timeline.shredded]
    left_out[UNREADABLE] += len(wholes) - len(episodes)
    return list(pairs(episodes, wanted, left_out))
