"""Which schema a database has, beside the one that this version of Hone brings along.

Revisions only add, so a database that is newer than this process serves it all the same: that is how an older gateway
goes on while the schema moves under it. One that is older lacks what this process needs. Moving it is left to `sql.py`.
"""

from __future__ import annotations

import importlib.resources
from functools import cache

from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

from tracker.overview import SchemaState
from tracker.sql import Database


class Schema(Database):
    """The ledger's part that knows which revision it stands on."""

    async def schema_state(self) -> tuple[SchemaState, str]:
        """How the database compares, and that in words."""
        found = await self.read(_revision)
        known = known_revisions()
        if found == known[0]:
            return SchemaState.CURRENT, f"revision {found}"
        if found in (None, *known):
            told = f"revision {found or 'none'} instead of {known[0]}: run hone migrate"
            return SchemaState.BEHIND, told
        return SchemaState.NEWER, f"revision {found}, newer than {known[0]}, which this gateway was made for"


@cache
def known_revisions() -> tuple[str, ...]:
    """Those that this version brings along, the newest first; they are files of the installation and never change."""
    with importlib.resources.as_file(importlib.resources.files("migrations")) as folder:
        config = Config()
        config.set_main_option("script_location", str(folder).replace("%", "%%"))
        return tuple(script.revision for script in ScriptDirectory.from_config(config).walk_revisions())


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
