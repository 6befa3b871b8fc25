"""Lists of the ledger from end to end, page by page, newest first: a run of millions is no matter of memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final, TypeVar

from tracker.ledger import SqlLedger
from tracker.types import EpisodeFilter, EpisodeRow, EpisodeState, Group

PAGE: Final = 200
T = TypeVar("T")
Read = Callable[[int, str | None], Awaitable[tuple[Sequence[T], str | None]]]
"""(limit, cursor) -> a page and the cursor of the next."""


async def pages(
    read: Read[T], *, limit: int | None = None, cursor: str | None = None, size: int = PAGE
) -> AsyncGenerator[tuple[Sequence[T], str | None]]:
    """Pages up to so many rows in all; `None` is all of them. Each comes with the cursor behind it."""
    left = limit
    while left is None or left > 0:
        rows, cursor = await read(size if left is None else min(left, size), cursor)
        yield rows, cursor
        left = None if left is None else left - len(rows)
        if cursor is None:
            return


def episodes_of(ledger: SqlLedger, tenant: str, wanted: EpisodeFilter) -> Read[EpisodeRow]:
    """Reads a tenant's episodes."""

    async def read(limit: int, cursor: str | None) -> tuple[Sequence[EpisodeRow], str | None]:
        page = await ledger.find_episodes(tenant, wanted, limit, cursor)
        return page.rows, page.older

    return read


def archived_of(ledger: SqlLedger, tenant: str, run: str | None) -> Read[EpisodeRow]:
    """Reads a run's archived episodes."""
    return episodes_of(ledger, tenant, EpisodeFilter(run=run, status=EpisodeState.ARCHIVED.value))


def groups_of(
    ledger: SqlLedger, tenant: str, *, run: str | None, task: str | None = None, state: str | None = None
) -> Read[Group]:
    """Reads a tenant's groups."""

    async def read(limit: int, cursor: str | None) -> tuple[Sequence[Group], str | None]:
        return await ledger.list_groups(tenant, run=run, task=task, state=state, limit=limit, cursor=cursor)

    return read
