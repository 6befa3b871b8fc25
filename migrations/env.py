"""Runs the revisions on the connection that `tracker.sql` passes in, inside its transaction.

There is no `alembic.ini` and no offline mode: `hone migrate` and every gateway's start come through here, so a schema
is changed in one way only, also from an installed wheel and within a running event loop.
"""

from __future__ import annotations

from alembic import context

from tracker.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
