"""Limits, former secrets and usage of keys; who opened an episode; the audit log, which only grows.

Revision 0004, after 0003. Keys of before have no limits, and episodes of before do not say who opened them: their calls
count against no key. A gateway of revision 0003 goes on serving beside it, and knows only a rotated key's new secret.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

LIMITS = ("requests_per_minute", "max_concurrent", "token_budget", "token_budget_per_day")
ID = sa.String().with_variant(sa.String(collation="C"), "postgresql")
COUNTER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    for name in LIMITS:
        op.add_column("keys", sa.Column(name, sa.BigInteger()))
    op.add_column("episodes", sa.Column("key_id", ID))
    op.create_table(
        "former_secrets",
        sa.Column("digest", ID, nullable=False),
        sa.Column("key_id", ID, nullable=False),
        sa.Column("until_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_former_secrets"),
        sa.ForeignKeyConstraint(["key_id"], ["keys.key_id"], name="fk_former_secrets_key_id"),
    )
    op.create_index("ix_former_secrets_key_id", "former_secrets", ["key_id"])
    op.create_table(
        "key_usage",
        sa.Column("key_id", ID, nullable=False),
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("sampled_tokens", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key_id", "day", name="pk_key_usage"),
        sa.ForeignKeyConstraint(["key_id"], ["keys.key_id"], name="fk_key_usage_key_id"),
    )
    op.create_table(
        "audit",
        sa.Column("seq", COUNTER, autoincrement=True, nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("tenant", ID, nullable=False),
        sa.Column("key_id", ID, nullable=False),
        sa.Column("act", ID, nullable=False),
        sa.Column("target", sa.LargeBinary(), nullable=False),
        sa.Column("detail", sa.LargeBinary(), nullable=False),
        sa.Column("outcome", ID, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_audit"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_tenant_seq", "audit", ["tenant", "seq"])
    for statement in _guards():
        op.execute(statement)


def downgrade() -> None:
    op.drop_table("audit")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION hone_keep_audit()")
    op.drop_table("key_usage")
    op.drop_table("former_secrets")
    op.drop_column("episodes", "key_id")
    for name in LIMITS:
        op.drop_column("keys", name)


def _guards() -> list[str]:
    """What makes the database refuse to change or delete what the audit log holds."""
    if op.get_bind().dialect.name == "postgresql":
        return [
            "CREATE FUNCTION hone_keep_audit() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'the audit log only grows'; END $$",
            "CREATE TRIGGER hone_keep_audit BEFORE UPDATE OR DELETE OR TRUNCATE ON audit "
            "FOR EACH STATEMENT EXECUTE FUNCTION hone_keep_audit()",
        ]
    return [
        f"CREATE TRIGGER hone_keep_audit_{act.lower()} BEFORE {act} ON audit "
        "BEGIN SELECT RAISE(ABORT, 'the audit log only grows'); END"
        for act in ("UPDATE", "DELETE")
    ]
