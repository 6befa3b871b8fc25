"""The audit log, on SQLite and PostgreSQL: it is read newest first, and only grows."""

from __future__ import annotations

import msgspec
import pytest
from sqlalchemy import Connection, delete, text, update
from sqlalchemy.exc import DBAPIError

from tracker import tables
from tracker.errors import BadRequest
from tracker.ledger import SqlLedger
from tracker.types import Act

ACT = Act(at_ms=5, tenant="a", key_id="k1", act="run.create", target="r\x00é", detail=b'{"group_size":4}')


async def test_acts_are_told_newest_first_and_to_their_tenant_only(ledger: SqlLedger) -> None:
    for n in range(5):
        await ledger.add_act(msgspec.structs.replace(ACT, at_ms=n))
    await ledger.add_act(msgspec.structs.replace(ACT, tenant="b", outcome="not_found"))
    seen: list[Act] = []
    cursor = None
    while True:
        page, cursor = await ledger.list_acts("a", 2, cursor)
        seen += page
        if cursor is None:
            break
    assert [act.at_ms for act in seen] == [4, 3, 2, 1, 0]
    assert [msgspec.structs.replace(act, seq=0, at_ms=5) for act in seen] == [ACT] * 5
    [foreign], _ = await ledger.list_acts("b", 2, None)
    assert foreign.outcome == "not_found"


@pytest.mark.parametrize("cursor", ["", "x", "-1", "9" * 19, "١"])
async def test_a_cursor_that_is_none_is_refused(ledger: SqlLedger, cursor: str) -> None:
    with pytest.raises(BadRequest):
        await ledger.list_acts("a", 2, cursor)


async def test_the_database_itself_refuses_to_change_the_log(ledger: SqlLedger) -> None:
    await ledger.add_act(ACT)

    def rewrite(connection: Connection) -> None:
        connection.execute(update(tables.audit).values(outcome="ok", key_id="someone else"))

    def erase(connection: Connection) -> None:
        connection.execute(delete(tables.audit))

    def empty(connection: Connection) -> None:
        is_postgres = connection.dialect.name == "postgresql"
        connection.execute(text("TRUNCATE audit") if is_postgres else text("DELETE FROM audit WHERE seq > 0"))

    for work in (rewrite, erase, empty):
        with pytest.raises(DBAPIError, match="only grows"):
            await ledger.write(work)
    acts, _ = await ledger.list_acts("a", 9, None)
    assert [msgspec.structs.replace(act, seq=0) for act in acts] == [ACT]
