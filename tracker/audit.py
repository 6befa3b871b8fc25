"""The audit log: every administrative act, who did it, to what, and how it went. It only grows.

An act that one transaction does is written in that transaction (`record_act`); one that reaches further, into the
episode store or the engines, is written right after it (`add_act`), also where it failed. Nothing in it is a secret:
whoever makes an act says what was asked for, never a key. That rows stay as they are is held by the database itself.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, insert, select

from tracker import tables
from tracker.errors import BadRequest
from tracker.sql import Database
from tracker.types import Act

MAX_CURSOR_CHARS = 18


class AuditLog(Database):
    """What administrators did."""

    async def add_act(self, act: Act) -> None:
        """Append an act; `seq` is given here."""
        await self.write(record_act, act)

    async def list_acts(self, tenant: str, limit: int, cursor: str | None) -> tuple[list[Act], str | None]:
        """A tenant's acts, newest first; `BadRequest` on a cursor that is none of ours."""
        return await self.read(_list_acts, tenant, limit, before_of(cursor))


def record_act(connection: Connection, act: Act | None) -> None:
    """Append an act in the transaction that does it; nothing where it is none."""
    if act is None:
        return
    values = {name: getattr(act, name) for name in Act.__struct_fields__ if name != "seq"}
    connection.execute(insert(tables.audit).values(values))


def _list_acts(connection: Connection, tenant: str, limit: int, before: int | None) -> tuple[list[Act], str | None]:
    audit = tables.audit
    where = [audit.c.tenant == tenant, *([] if before is None else [audit.c.seq < before])]
    rows = connection.execute(select(audit).where(*where).order_by(audit.c.seq.desc()).limit(limit + 1)).all()
    acts = [_act(row) for row in rows[:limit]]
    return acts, str(acts[-1].seq) if len(rows) > limit and acts else None


def _act(row: Row[Any]) -> Act:
    return Act(**dict(row._mapping))  # pyright: ignore[reportPrivateUsage]


def before_of(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= MAX_CURSOR_CHARS):
        raise BadRequest("Pass next_cursor of the page before, unchanged.", param="cursor")
    return int(cursor)
