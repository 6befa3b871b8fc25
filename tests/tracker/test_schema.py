"""Which schema a database has beside the one that is brought along: that one, a newer one, or an older one."""

from __future__ import annotations

from sqlalchemy import Connection, text

from tracker.ledger import SqlLedger
from tracker.overview import SchemaState
from tracker.schema import known_revisions


def stamped(connection: Connection, revision: str) -> None:
    connection.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})


async def test_a_migrated_database_is_current(ledger: SqlLedger) -> None:
    state, told = await ledger.schema_state()
    assert state is SchemaState.CURRENT
    assert known_revisions()[0] in told


async def test_an_older_revision_is_behind_and_the_words_say_what_to_run(ledger: SqlLedger) -> None:
    await ledger.write(stamped, known_revisions()[-1])
    state, told = await ledger.schema_state()
    assert state is SchemaState.BEHIND
    assert "hone migrate" in told


async def test_a_revision_that_nobody_here_knows_is_a_newer_one(ledger: SqlLedger) -> None:
    await ledger.write(stamped, "9999")
    assert (await ledger.schema_state())[0] is SchemaState.NEWER


async def test_a_database_without_tables_is_behind(ledger: SqlLedger) -> None:
    await ledger.write(lambda connection: connection.execute(text("DROP TABLE alembic_version")))
    assert (await ledger.schema_state())[0] is SchemaState.BEHIND
