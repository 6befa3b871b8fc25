"""Data care: what is still kept of an episode, which keys it is of, tenants' keys, and where a policy went back to.

Revision 0005. Episodes of before are kept whole; which keys they are of stands in their archives. Rollbacks of before
are not known.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

RETENTION = "ix_episodes_tenant_run_kept_archived_ms"


def upgrade() -> None:
    op.add_column("episodes", sa.Column("kept", sa.Integer(), nullable=False, server_default="7"))
    op.create_index(RETENTION, "episodes", ["tenant", "run", "kept", "archived_ms"])
    op.create_index("ix_episodes_key_id", "episodes", ["key_id"])
    op.create_table(
        "episode_keys",
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("episode_id", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["episode_id"], ["episodes.episode_id"], name="fk_episode_keys_episode_id"),
        sa.PrimaryKeyConstraint("key_id", "episode_id", name="pk_episode_keys"),
    )
    op.create_index("ix_episode_keys_episode_id", "episode_keys", ["episode_id"])
    op.create_table(
        "tenant_keys",
        sa.Column("tenant", sa.String(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("wrapped", sa.LargeBinary()),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("shredded_ms", sa.BigInteger()),
        sa.PrimaryKeyConstraint("tenant", "generation", name="pk_tenant_keys"),
    )
    op.create_table(
        "rollbacks",
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["policy"], ["policies.policy"], name="fk_rollbacks_policy"),
        sa.PrimaryKeyConstraint("policy", "epoch", name="pk_rollbacks"),
    )


def downgrade() -> None:
    op.drop_table("rollbacks")
    op.drop_table("tenant_keys")
    op.drop_table("episode_keys")
    op.drop_index("ix_episodes_key_id", "episodes")
    op.drop_index(RETENTION, "episodes")
    with op.batch_alter_table("episodes") as episodes:
        episodes.drop_column("kept")
