"""Releases: trials of versions, the arms of groups and episodes, what answers were like, shadows and alarms.

Revision 0007. Groups and episodes of before, and those that a gateway of before opens beside this one, have no arms:
they get the stable version and are in no trial. Archives of before are not measured.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

ID = sa.String().with_variant(sa.String(collation="C"), "postgresql")
COUNTER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("groups", sa.Column("arms", sa.LargeBinary()))
    op.add_column("episodes", sa.Column("arms", sa.LargeBinary()))
    op.create_table(
        "trials",
        sa.Column("policy", ID, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("stable", sa.Integer(), nullable=False),
        sa.Column("state", ID, nullable=False),
        sa.Column("share", sa.Double(), nullable=False),
        sa.Column("salt", ID, nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("started_ms", sa.BigInteger()),
        sa.Column("ended_ms", sa.BigInteger()),
        sa.ForeignKeyConstraint(["policy"], ["policies.policy"], name="fk_trials_policy"),
        sa.PrimaryKeyConstraint("policy", "version", name="pk_trials"),
    )
    op.create_index("ix_trials_state_policy", "trials", ["state", "policy"])
    op.create_table(
        "trial_episodes",
        sa.Column("policy", ID, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("episode_id", ID, nullable=False),
        sa.Column("is_canary", sa.Boolean(), nullable=False),
        sa.Column("share", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["episode_id"], ["episodes.episode_id"], name="fk_trial_episodes_episode_id"),
        sa.PrimaryKeyConstraint("policy", "version", "episode_id", name="pk_trial_episodes"),
    )
    op.create_index("ix_trial_episodes_episode_id", "trial_episodes", ["episode_id"])
    _create_events()
    _create_shadows()
    _create_measures()
    for statement in _guards():
        op.execute(statement)


def downgrade() -> None:
    op.drop_table("alarms")
    op.drop_table("measures")
    op.drop_table("shadow_tallies")
    op.drop_table("shadows")
    op.drop_table("release_events")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION hone_keep_releases()")
    op.drop_table("trial_episodes")
    op.drop_table("trials")
    op.drop_column("episodes", "arms")
    op.drop_column("groups", "arms")


def _create_events() -> None:
    op.create_table(
        "release_events",
        sa.Column("seq", COUNTER, autoincrement=True, nullable=False),
        sa.Column("policy", ID, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("kind", ID, nullable=False),
        sa.Column("by", ID, nullable=False),
        sa.Column("why", sa.LargeBinary(), nullable=False),
        sa.Column("numbers", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_release_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_release_events_policy_seq", "release_events", ["policy", "seq"])


def _create_shadows() -> None:
    op.create_table(
        "shadows",
        sa.Column("policy", ID, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("share", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["policy"], ["policies.policy"], name="fk_shadows_policy"),
        sa.PrimaryKeyConstraint("policy", name="pk_shadows"),
    )
    op.create_table(
        "shadow_tallies",
        sa.Column("policy", ID, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("against", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("numbers", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["policy"], ["policies.policy"], name="fk_shadow_tallies_policy"),
        sa.PrimaryKeyConstraint("policy", "version", "against", name="pk_shadow_tallies"),
    )


def _create_measures() -> None:
    op.create_table(
        "measures",
        sa.Column("episode_id", ID, nullable=False),
        sa.Column("policy", ID, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("archived_ms", sa.BigInteger(), nullable=False),
        sa.Column("numbers", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["episode_id"], ["episodes.episode_id"], name="fk_measures_episode_id"),
        sa.PrimaryKeyConstraint("episode_id", "policy", name="pk_measures"),
    )
    op.create_index("ix_measures_policy_archived_ms", "measures", ["policy", "archived_ms"])
    op.create_table(
        "alarms",
        sa.Column("tenant", ID, nullable=False),
        sa.Column("run", ID, nullable=False),
        sa.Column("policy", ID, nullable=False),
        sa.Column("kind", ID, nullable=False),
        sa.Column("raised_ms", sa.BigInteger(), nullable=False),
        sa.Column("detail", sa.LargeBinary(), nullable=False),
        sa.Column("numbers", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "run", "policy", "kind", name="pk_alarms"),
    )


def _guards() -> list[str]:
    """What makes the database refuse to change or delete what became of a version."""
    if op.get_bind().dialect.name == "postgresql":
        return [
            "CREATE FUNCTION hone_keep_releases() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'release events only grow'; END $$",
            "CREATE TRIGGER hone_keep_releases BEFORE UPDATE OR DELETE OR TRUNCATE ON release_events "
            "FOR EACH STATEMENT EXECUTE FUNCTION hone_keep_releases()",
        ]
    return [
        f"CREATE TRIGGER hone_keep_releases_{act.lower()} BEFORE {act} ON release_events "
        "BEGIN SELECT RAISE(ABORT, 'release events only grow'); END"
        for act in ("UPDATE", "DELETE")
    ]
