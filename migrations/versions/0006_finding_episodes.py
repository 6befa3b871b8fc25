"""What episodes and groups are found by: the reward of an episode, its kinds of calls, and indexes.

Revision 0006. Rewards of before are summed, and archives of before are looked into, by the first gateway that knows
this revision. A gateway of revision 0005 that goes on beside it sums nothing and notes no kinds; a trigger and the
defaults say so.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

ID = sa.String().with_variant(sa.String(collation="C"), "postgresql")
EPISODES = ("run", "task_digest", "status")
GROUPS = ("run", "task_digest", "state")
TO_SCORE = "NOT is_scored"
WITHOUT_KINDS = "NOT has_kinds AND archived_ms IS NOT NULL"
REWARDED = """
    UPDATE episodes SET is_scored = false
    WHERE episode_id IN (SELECT episode_id FROM rewards WHERE call_id IS NULL)
"""
MARK = "UPDATE episodes SET is_scored = false WHERE episode_id = NEW.episode_id;"


def upgrade() -> None:
    op.add_column("episodes", sa.Column("score", sa.Double()))
    op.add_column("episodes", sa.Column("is_scored", sa.Boolean(), nullable=False, server_default=sa.true()))
    op.add_column("episodes", sa.Column("has_kinds", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute(REWARDED)
    for name in EPISODES:
        op.create_index(f"ix_episodes_tenant_{name}_created_ms_episode_id", "episodes", _after(name, "episode_id"))
    for name in GROUPS:
        op.create_index(f"ix_groups_tenant_{name}_created_ms_group_id", "groups", _after(name, "group_id"))
    _create_partial("ix_episodes_to_score", "episode_id", TO_SCORE)
    _create_partial("ix_episodes_without_kinds", "archived_ms", WITHOUT_KINDS)
    op.create_table(
        "call_kinds",
        sa.Column("episode_id", ID, nullable=False),
        sa.Column("policy", ID, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("role", ID, nullable=False),
        sa.Column("num_calls", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["episode_id"], ["episodes.episode_id"], name="fk_call_kinds_episode_id"),
        sa.PrimaryKeyConstraint("episode_id", "policy", "version", "role", name="pk_call_kinds"),
    )
    op.create_index("ix_call_kinds_role_episode_id", "call_kinds", ["role", "episode_id"])
    op.create_index("ix_call_kinds_policy_version_episode_id", "call_kinds", ["policy", "version", "episode_id"])
    for statement in _marks():
        op.execute(statement)


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP TRIGGER hone_mark_score ON rewards")
        op.execute("DROP FUNCTION hone_mark_score()")
    else:
        op.execute("DROP TRIGGER hone_mark_score")
    op.drop_table("call_kinds")
    for name in GROUPS:
        op.drop_index(f"ix_groups_tenant_{name}_created_ms_group_id", "groups")
    for name in EPISODES:
        op.drop_index(f"ix_episodes_tenant_{name}_created_ms_episode_id", "episodes")
    op.drop_index("ix_episodes_without_kinds", "episodes")
    op.drop_index("ix_episodes_to_score", "episodes")
    with op.batch_alter_table("episodes") as episodes:
        for name in ("has_kinds", "is_scored", "score"):
            episodes.drop_column(name)


def _after(name: str, named: str) -> list[str]:
    return ["tenant", name, "created_ms", named]


def _create_partial(name: str, column: str, where: str) -> None:
    op.create_index(name, "episodes", [column], sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def _marks() -> list[str]:
    """What makes the database say that an episode's score is not that of all its rewards."""
    if op.get_bind().dialect.name == "postgresql":
        return [
            "CREATE FUNCTION hone_mark_score() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN {MARK} RETURN NULL; END $$",
            "CREATE TRIGGER hone_mark_score AFTER INSERT ON rewards FOR EACH ROW "
            "WHEN (NEW.call_id IS NULL) EXECUTE FUNCTION hone_mark_score()",
        ]
    return [f"CREATE TRIGGER hone_mark_score AFTER INSERT ON rewards WHEN NEW.call_id IS NULL BEGIN {MARK} END"]
