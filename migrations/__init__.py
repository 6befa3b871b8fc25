"""The history of the SQL schema: Alembic revisions, run by `tracker.sql` on a connection that it passes in."""
