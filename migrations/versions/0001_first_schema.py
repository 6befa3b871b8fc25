"""The first schema: registry, episodes, rewards, policies, batches.

Revision 0001, after nothing. The tables are spelled out here and not taken from `tracker.tables`, which will move on.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ID = sa.String().with_variant(sa.String(collation="C"), "postgresql")
COUNTER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    for create in CREATED.values():
        create()


def downgrade() -> None:
    for table in reversed(CREATED):
        op.drop_table(table)


def _create_keys() -> None:
    op.create_table(
        "keys",
        sa.Column("key_id", ID, nullable=False),
        sa.Column("digest", ID, nullable=False),
        sa.Column("tenant", ID, nullable=False),
        sa.Column("scopes", ID, nullable=False),
        sa.Column("label", sa.LargeBinary(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger()),
        sa.Column("revoked_ms", sa.BigInteger()),
        sa.PrimaryKeyConstraint("key_id", name="pk_keys"),
        sa.UniqueConstraint("digest", name="uq_keys_digest"),
    )
    op.create_index("ix_keys_tenant", "keys", ["tenant"])


def _create_secrets() -> None:
    op.create_table(
        "secrets",
        sa.Column("name", ID, nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_secrets"),
    )


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("tenant", ID, nullable=False),
        sa.Column("run", ID, nullable=False),
        sa.Column("settings", sa.LargeBinary(), nullable=False),
        sa.Column("frozen", sa.Boolean(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "run", name="pk_runs"),
    )


def _create_idempotency() -> None:
    op.create_table(
        "idempotency",
        sa.Column("tenant", ID, nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("key", ID, nullable=False),
        sa.Column("body_digest", ID, nullable=False),
        sa.Column("target", ID, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "kind", "key", name="pk_idempotency"),
    )


def _create_groups() -> None:
    op.create_table(
        "groups",
        sa.Column("group_id", ID, nullable=False),
        sa.Column("tenant", ID, nullable=False),
        sa.Column("run", ID, nullable=False),
        sa.Column("task", sa.LargeBinary(), nullable=False),
        sa.Column("task_digest", ID, nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String()),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("ready_ms", sa.BigInteger()),
        sa.PrimaryKeyConstraint("group_id", name="pk_groups"),
        sa.UniqueConstraint("tenant", "run", "task_digest", "round", name="uq_groups_tenant_run_task_digest_round"),
    )
    op.create_index("ix_groups_state_ready_ms", "groups", ["state", "ready_ms"])
    op.create_index("ix_groups_tenant_created_ms_group_id", "groups", ["tenant", "created_ms", "group_id"])


def _create_episodes() -> None:
    op.create_table(
        "episodes",
        sa.Column("episode_id", ID, nullable=False),
        sa.Column("tenant", ID, nullable=False),
        sa.Column("run", ID, nullable=False),
        sa.Column("task", sa.LargeBinary(), nullable=False),
        sa.Column("task_digest", ID, nullable=False),
        sa.Column("group_id", ID),
        sa.Column("place", sa.Integer()),
        sa.Column("policy", ID),
        sa.Column("version", sa.Integer()),
        sa.Column("ttl_ms", sa.BigInteger()),
        sa.Column("metadata", sa.LargeBinary(), nullable=False),
        sa.Column("implicit", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("status", sa.String()),
        sa.Column("num_calls", sa.BigInteger(), nullable=False),
        sa.Column("num_samples", sa.BigInteger(), nullable=False),
        sa.Column("num_excluded", sa.BigInteger(), nullable=False),
        sa.Column("num_truncated", sa.BigInteger(), nullable=False),
        sa.Column("num_raw_tokens", sa.BigInteger(), nullable=False),
        sa.Column("num_distinct_tokens", sa.BigInteger(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("ended_ms", sa.BigInteger()),
        sa.Column("archived_ms", sa.BigInteger()),
        sa.Column("deleted_ms", sa.BigInteger()),
        sa.ForeignKeyConstraint(["group_id"], ["groups.group_id"], name="fk_episodes_group_id"),
        sa.PrimaryKeyConstraint("episode_id", name="pk_episodes"),
        sa.UniqueConstraint("group_id", "place", name="uq_episodes_group_id_place"),
    )
    op.create_index("ix_episodes_state_created_ms", "episodes", ["state", "created_ms"])
    op.create_index("ix_episodes_tenant_created_ms_episode_id", "episodes", ["tenant", "created_ms", "episode_id"])


def _create_episode_policies() -> None:
    op.create_table(
        "episode_policies",
        sa.Column("episode_id", ID, nullable=False),
        sa.Column("policy", ID, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["episode_id"], ["episodes.episode_id"], name="fk_episode_policies_episode_id"),
        sa.PrimaryKeyConstraint("episode_id", "policy", name="pk_episode_policies"),
    )


def _create_episode_events() -> None:
    op.create_table(
        "episode_events",
        sa.Column("seq", COUNTER, autoincrement=True, nullable=False),
        sa.Column("episode_id", ID, nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("detail", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["episode_id"], ["episodes.episode_id"], name="fk_episode_events_episode_id"),
        sa.PrimaryKeyConstraint("seq", name="pk_episode_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_episode_events_episode_id", "episode_events", ["episode_id"])


def _create_timelines() -> None:
    op.create_table(
        "timelines",
        sa.Column("episode_id", ID, nullable=False),
        sa.Column("blob", sa.LargeBinary(), nullable=False),
        sa.Column("digest", ID, nullable=False),
        sa.ForeignKeyConstraint(["episode_id"], ["episodes.episode_id"], name="fk_timelines_episode_id"),
        sa.PrimaryKeyConstraint("episode_id", name="pk_timelines"),
    )
    # ### end Alembic commands ###


def _create_rewards() -> None:
    op.create_table(
        "rewards",
        sa.Column("seq", COUNTER, autoincrement=True, nullable=False),
        sa.Column("reward_id", ID, nullable=False),
        sa.Column("episode_id", ID, nullable=False),
        sa.Column("call_id", ID),
        sa.Column("name", sa.LargeBinary(), nullable=False),
        sa.Column("value", sa.Double()),
        sa.Column("final", sa.Boolean(), nullable=False),
        sa.Column("source", sa.LargeBinary(), nullable=False),
        sa.Column("metadata", sa.LargeBinary(), nullable=False),
        sa.Column("late", sa.Boolean(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["episode_id"], ["episodes.episode_id"], name="fk_rewards_episode_id"),
        sa.PrimaryKeyConstraint("seq", name="pk_rewards"),
        sa.UniqueConstraint("reward_id", name="uq_rewards_reward_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_rewards_episode_id", "rewards", ["episode_id"])


def _create_policies() -> None:
    op.create_table(
        "policies",
        sa.Column("policy", ID, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("active", sa.Integer(), nullable=False),
        sa.Column("last_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("policy", name="pk_policies"),
    )


def _create_versions() -> None:
    op.create_table(
        "versions",
        sa.Column("policy", ID, nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("folder", ID, nullable=False),
        sa.Column("digest", ID, nullable=False),
        sa.Column("metrics", sa.LargeBinary(), nullable=False),
        sa.Column("probe", sa.LargeBinary(), nullable=False),
        sa.Column("detail", sa.LargeBinary(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["policy"], ["policies.policy"], name="fk_versions_policy"),
        sa.PrimaryKeyConstraint("policy", "version", name="pk_versions"),
    )
    op.create_index(
        "uq_versions_folder",
        "versions",
        ["policy", "folder"],
        unique=True,
        sqlite_where=sa.text("folder <> ''"),
        postgresql_where=sa.text("folder <> ''"),
    )


def _create_trainer_leases() -> None:
    op.create_table(
        "trainer_leases",
        sa.Column("policy", ID, nullable=False),
        sa.Column("holder", sa.LargeBinary(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["policy"], ["policies.policy"], name="fk_trainer_leases_policy"),
        sa.PrimaryKeyConstraint("policy", name="pk_trainer_leases"),
    )


def _create_batches() -> None:
    op.create_table(
        "batches",
        sa.Column("batch_id", ID, nullable=False),
        sa.Column("policy", ID, nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("credit", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("version", sa.Integer()),
        sa.Column("manifest", sa.LargeBinary(), nullable=False),
        sa.Column("metrics", sa.LargeBinary(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["policy"], ["policies.policy"], name="fk_batches_policy"),
        sa.PrimaryKeyConstraint("batch_id", name="pk_batches"),
    )
    op.create_index(
        "uq_batches_step",
        "batches",
        ["policy", "epoch", "step"],
        unique=True,
        sqlite_where=sa.text("state <> 'dropped'"),
        postgresql_where=sa.text("state <> 'dropped'"),
    )


def _create_batch_groups() -> None:
    op.create_table(
        "batch_groups",
        sa.Column("group_id", ID, nullable=False),
        sa.Column("policy", ID, nullable=False),
        sa.Column("batch_id", ID),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String()),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.batch_id"], name="fk_batch_groups_batch_id"),
        sa.ForeignKeyConstraint(["group_id"], ["groups.group_id"], name="fk_batch_groups_group_id"),
        sa.PrimaryKeyConstraint("group_id", "policy", name="pk_batch_groups"),
    )
    op.create_index("ix_batch_groups_batch_id", "batch_groups", ["batch_id"])


def _create_standings() -> None:
    op.create_table(
        "standings",
        sa.Column("group_id", ID, nullable=False),
        sa.Column("episode_id", ID, nullable=False),
        sa.Column("reward", sa.Double()),
        sa.Column("advantage", sa.Double()),
        sa.Column("member", sa.Boolean(), nullable=False),
        sa.Column("why", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["group_id"], ["groups.group_id"], name="fk_standings_group_id"),
        sa.PrimaryKeyConstraint("group_id", "episode_id", name="pk_standings"),
    )


CREATED = {
    "keys": _create_keys,
    "secrets": _create_secrets,
    "runs": _create_runs,
    "idempotency": _create_idempotency,
    "groups": _create_groups,
    "episodes": _create_episodes,
    "episode_policies": _create_episode_policies,
    "episode_events": _create_episode_events,
    "timelines": _create_timelines,
    "rewards": _create_rewards,
    "policies": _create_policies,
    "versions": _create_versions,
    "trainer_leases": _create_trainer_leases,
    "batches": _create_batches,
    "batch_groups": _create_batch_groups,
    "standings": _create_standings,
}
