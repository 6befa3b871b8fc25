"""The tables of SQL, and nothing else: what each holds, its keys and the indexes that its readers need.

The same tables stand on SQLite and PostgreSQL. Free text of users and engines is stored as UTF-8 bytes (`Exact`),
because PostgreSQL refuses a NUL in text and SQLite does not; a reader must not see a difference. Statements are in
the modules that own a part of the ledger, the history of the schema is in `migrations/`.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    false,
    text,
    true,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

Millis = BigInteger
"""Unix milliseconds."""
Id = String
"""Ids, names and digests: ASCII, checked at the door, in one order everywhere."""
Word = String
"""A value of one of the enums of `types.py`."""
Counter = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself only under its own INTEGER."""


class Exact(TypeDecorator[str]):
    """Text kept code point for code point, lone surrogates and NUL included."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:
        return None if value is None else value.encode("utf-8", "surrogatepass")

    def process_result_value(self, value: Any | None, dialect: Dialect) -> str | None:
        return None if value is None else bytes(value).decode("utf-8", "surrogatepass")


metadata: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

keys: Final = Table(
    "keys",
    metadata,
    Column("key_id", Id, primary_key=True),
    Column("digest", Id, nullable=False, unique=True),
    Column("tenant", Id, nullable=False, index=True),
    Column("scopes", Id, nullable=False),
    Column("label", Exact, nullable=False),
    Column("created_ms", Millis, nullable=False),
    Column("expires_ms", Millis),
    Column("revoked_ms", Millis),
    Column("requests_per_minute", BigInteger),
    Column("max_concurrent", BigInteger),
    Column("token_budget", BigInteger),
    Column("token_budget_per_day", BigInteger),
)

former_secrets: Final = Table(
    "former_secrets",
    metadata,
    Column("digest", Id, primary_key=True),
    Column("key_id", Id, ForeignKey("keys.key_id"), nullable=False, index=True),
    Column("until_ms", Millis, nullable=False),
)
"""Digests that a key had before it was rotated, each good until its grace is over."""

key_usage: Final = Table(
    "key_usage",
    metadata,
    Column("key_id", Id, ForeignKey("keys.key_id"), primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),
    Column("calls", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("sampled_tokens", BigInteger, nullable=False),
)
"""What calls with a key took on a day (counted from 1970-01-01, UTC)."""

audit: Final = Table(
    "audit",
    metadata,
    Column("seq", Counter, primary_key=True, autoincrement=True),
    Column("at_ms", Millis, nullable=False),
    Column("tenant", Id, nullable=False),
    Column("key_id", Id, nullable=False),
    Column("act", Word, nullable=False),
    Column("target", Exact, nullable=False),
    Column("detail", LargeBinary, nullable=False),
    Column("outcome", Word, nullable=False),
    Index(None, "tenant", "seq"),
    sqlite_autoincrement=True,
)
"""Administrative acts. The database itself refuses to change or delete a row (revision 0004)."""

secrets: Final = Table(
    "secrets",
    metadata,
    Column("name", Id, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

runs: Final = Table(
    "runs",
    metadata,
    Column("tenant", Id, primary_key=True),
    Column("run", Id, primary_key=True),
    Column("settings", LargeBinary, nullable=False),
    Column("frozen", Boolean, nullable=False),
    Column("created_ms", Millis, nullable=False),
)

idempotency: Final = Table(
    "idempotency",
    metadata,
    Column("tenant", Id, primary_key=True),
    Column("kind", Word, primary_key=True),
    Column("key", Id, primary_key=True),
    Column("body_digest", Id, nullable=False),
    Column("target", Id, nullable=False),
)

groups: Final = Table(
    "groups",
    metadata,
    Column("group_id", Id, primary_key=True),
    Column("tenant", Id, nullable=False),
    Column("run", Id, nullable=False),
    Column("task", Exact, nullable=False),
    Column("task_digest", Id, nullable=False),
    Column("round", Integer, nullable=False),
    Column("size", Integer, nullable=False),
    Column("state", Word, nullable=False),
    Column("reason", Word),
    Column("created_ms", Millis, nullable=False),
    Column("ready_ms", Millis),
    Column("arms", LargeBinary),
    UniqueConstraint("tenant", "run", "task_digest", "round"),
    Index(None, "state", "ready_ms"),
    Index(None, "tenant", "created_ms", "group_id"),
    Index(None, "tenant", "run", "created_ms", "group_id"),
    Index(None, "tenant", "task_digest", "created_ms", "group_id"),
    Index(None, "tenant", "state", "created_ms", "group_id"),
)

episodes: Final = Table(
    "episodes",
    metadata,
    Column("episode_id", Id, primary_key=True),
    Column("tenant", Id, nullable=False),
    Column("run", Id, nullable=False),
    Column("task", Exact, nullable=False),
    Column("task_digest", Id, nullable=False),
    Column("group_id", Id, ForeignKey("groups.group_id")),
    Column("place", Integer),
    Column("policy", Id),
    Column("version", Integer),
    Column("ttl_ms", Millis),
    Column("metadata", LargeBinary, nullable=False),
    Column("implicit", Boolean, nullable=False),
    Column("state", Word, nullable=False),
    Column("status", Word),
    Column("num_calls", BigInteger, nullable=False, default=0),
    Column("num_samples", BigInteger, nullable=False, default=0),
    Column("num_excluded", BigInteger, nullable=False, default=0),
    Column("num_truncated", BigInteger, nullable=False, default=0),
    Column("num_raw_tokens", BigInteger, nullable=False, default=0),
    Column("num_distinct_tokens", BigInteger, nullable=False, default=0),
    Column("created_ms", Millis, nullable=False),
    Column("ended_ms", Millis),
    Column("archived_ms", Millis),
    Column("deleted_ms", Millis),
    Column("key_id", Id, index=True),
    Column("kept", Integer, nullable=False, server_default="7"),
    Column("score", Double),
    Column("is_scored", Boolean, nullable=False, server_default=true()),
    Column("has_kinds", Boolean, nullable=False, server_default=false()),
    Column("engine_ms", BigInteger),
    Column("prompt_tokens", BigInteger),
    Column("sampled_tokens", BigInteger),
    Column("upstream_cost", Double),
    Column("arms", LargeBinary),
    UniqueConstraint("group_id", "place"),
    Index(None, "tenant", "created_ms", "episode_id"),
    Index(None, "tenant", "run", "created_ms", "episode_id"),
    Index(None, "tenant", "task_digest", "created_ms", "episode_id"),
    Index(None, "tenant", "status", "created_ms", "episode_id"),
    Index(None, "state", "created_ms"),
    Index(None, "tenant", "run", "kept", "archived_ms"),
    Index(
        "ix_episodes_to_score",
        "episode_id",
        sqlite_where=text("NOT is_scored"),
        postgresql_where=text("NOT is_scored"),
    ),
    Index(
        "ix_episodes_without_kinds",
        "archived_ms",
        sqlite_where=text("NOT has_kinds AND archived_ms IS NOT NULL"),
        postgresql_where=text("NOT has_kinds AND archived_ms IS NOT NULL"),
    ),
)
"""`place` is the seat in the group, null once it is lost. `key_id` is the key that opened it, null before revision
0004; `kept` is what of it is still there, in the bits of `retention.py`. `score` is the effective reward that lists
are filtered by, `is_scored` whether it is that of all reward events: the database itself says no at each new one
(revision 0006). `has_kinds`: its kinds of calls are. From `engine_ms` on: what its calls took, null before revision
0008. A deleted episode stays as a row that says only that."""

episode_keys: Final = Table(
    "episode_keys",
    metadata,
    Column("key_id", Id, primary_key=True),
    Column("episode_id", Id, ForeignKey("episodes.episode_id"), primary_key=True, index=True),
)
"""Which keys the calls of an archived episode were made with; written with the archive."""

episode_policies: Final = Table(
    "episode_policies",
    metadata,
    Column("episode_id", Id, ForeignKey("episodes.episode_id"), primary_key=True),
    Column("policy", Id, primary_key=True),
    Column("version", Integer, nullable=False),
)
"""Which policies an archived episode called, and the version it was pinned to last."""

call_kinds: Final = Table(
    "call_kinds",
    metadata,
    Column("episode_id", Id, ForeignKey("episodes.episode_id"), primary_key=True),
    Column("policy", Id, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("role", Id, primary_key=True),
    Column("num_calls", Integer, nullable=False),
    Index(None, "role", "episode_id"),
    Index(None, "policy", "version", "episode_id"),
)
"""What calls an archived episode has, by policy, version and role: what lists are filtered by. `policy` is empty for
models that are no policy."""

episode_events: Final = Table(
    "episode_events",
    metadata,
    Column("seq", Counter, primary_key=True, autoincrement=True),
    Column("episode_id", Id, ForeignKey("episodes.episode_id"), nullable=False, index=True),
    Column("at_ms", Millis, nullable=False),
    Column("kind", Word, nullable=False),
    Column("detail", Exact, nullable=False),
    sqlite_autoincrement=True,
)

timelines: Final = Table(
    "timelines",
    metadata,
    Column("episode_id", Id, ForeignKey("episodes.episode_id"), primary_key=True),
    Column("blob", LargeBinary, nullable=False),
    Column("digest", Id, nullable=False),
    Column("receipts", LargeBinary),
)
"""`digest` is the chain over the receipts of the episode's calls, closed when it was sealed. `receipts` are those,
apart from the calls, so that a call which differs can be named; null in an archive of revision 0001."""

rewards: Final = Table(
    "rewards",
    metadata,
    Column("seq", Counter, primary_key=True, autoincrement=True),
    Column("reward_id", Id, nullable=False, unique=True),
    Column("episode_id", Id, ForeignKey("episodes.episode_id"), nullable=False, index=True),
    Column("call_id", Id),
    Column("name", Exact, nullable=False),
    Column("value", Double),
    Column("final", Boolean, nullable=False),
    Column("source", Exact, nullable=False),
    Column("metadata", LargeBinary, nullable=False),
    Column("late", Boolean, nullable=False),
    Column("created_ms", Millis, nullable=False),
    sqlite_autoincrement=True,
)

policies: Final = Table(
    "policies",
    metadata,
    Column("policy", Id, primary_key=True),
    Column("epoch", Integer, nullable=False),
    Column("active", Integer, nullable=False),
    Column("last_version", Integer, nullable=False),
)

versions: Final = Table(
    "versions",
    metadata,
    Column("policy", Id, ForeignKey("policies.policy"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("epoch", Integer, nullable=False),
    Column("state", Word, nullable=False),
    Column("folder", Id, nullable=False),
    Column("digest", Id, nullable=False),
    Column("metrics", LargeBinary, nullable=False),
    Column("probe", LargeBinary, nullable=False),
    Column("detail", Exact, nullable=False),
    Column("created_ms", Millis, nullable=False),
    Column("activated_ms", Millis),
    Index(
        "uq_versions_folder",
        "policy",
        "folder",
        unique=True,
        sqlite_where=text("folder <> ''"),
        postgresql_where=text("folder <> ''"),
    ),
)

rollbacks: Final = Table(
    "rollbacks",
    metadata,
    Column("policy", Id, ForeignKey("policies.policy"), primary_key=True),
    Column("epoch", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
    Column("at_ms", Millis, nullable=False),
)
"""Which version an epoch of a policy began from; epoch 0 began from the base model."""

tenant_keys: Final = Table(
    "tenant_keys",
    metadata,
    Column("tenant", Id, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("wrapped", LargeBinary),
    Column("created_ms", Millis, nullable=False),
    Column("shredded_ms", Millis),
)
"""The keys that a tenant's archives are sealed with, each wrapped with the master key; null once it was shredded."""

trainer_leases: Final = Table(
    "trainer_leases",
    metadata,
    Column("policy", Id, ForeignKey("policies.policy"), primary_key=True),
    Column("holder", Exact, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("expires_ms", Millis, nullable=False),
)

batches: Final = Table(
    "batches",
    metadata,
    Column("batch_id", Id, primary_key=True),
    Column("policy", Id, ForeignKey("policies.policy"), nullable=False),
    Column("step", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("credit", LargeBinary, nullable=False),
    Column("state", Word, nullable=False),
    Column("version", Integer),
    Column("manifest", LargeBinary, nullable=False),
    Column("metrics", LargeBinary, nullable=False),
    Column("created_ms", Millis, nullable=False),
    Index(
        "uq_batches_step",
        "policy",
        "epoch",
        "step",
        unique=True,
        sqlite_where=text("state <> 'dropped'"),
        postgresql_where=text("state <> 'dropped'"),
    ),
)
"""A step is unique within the policy's epoch, dropped batches aside: a rollback goes on from an older step."""

batch_groups: Final = Table(
    "batch_groups",
    metadata,
    Column("group_id", Id, ForeignKey("groups.group_id"), primary_key=True),
    Column("policy", Id, primary_key=True),
    Column("batch_id", Id, ForeignKey("batches.batch_id"), index=True),
    Column("position", Integer, nullable=False),
    Column("state", Word, nullable=False),
    Column("reason", Word),
)
"""What became of each policy's share of a group: taken, trained or skipped. No row: not taken yet."""

standings: Final = Table(
    "standings",
    metadata,
    Column("group_id", Id, ForeignKey("groups.group_id"), primary_key=True),
    Column("episode_id", Id, primary_key=True),
    Column("reward", Double),
    Column("advantage", Double),
    Column("member", Boolean, nullable=False),
    Column("why", Word, nullable=False),
)
"""How each member stood when its group was taken; later rewards change nothing here."""

trials: Final = Table(
    "trials",
    metadata,
    Column("policy", Id, ForeignKey("policies.policy"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("epoch", Integer, nullable=False),
    Column("stable", Integer, nullable=False),
    Column("state", Word, nullable=False),
    Column("share", Double, nullable=False),
    Column("salt", Id, nullable=False),
    Column("created_ms", Millis, nullable=False),
    Column("started_ms", Millis),
    Column("ended_ms", Millis),
    Index(None, "state", "policy"),
)
"""Versions that have to earn their traffic. `salt` keys the hash that chooses arms; `stable` is what it is compared
with."""

trial_episodes: Final = Table(
    "trial_episodes",
    metadata,
    Column("policy", Id, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("episode_id", Id, ForeignKey("episodes.episode_id"), primary_key=True, index=True),
    Column("is_canary", Boolean, nullable=False),
    Column("share", Double, nullable=False),
)
"""The episodes that were begun in a trial, and the share with which their arm was drawn."""

release_events: Final = Table(
    "release_events",
    metadata,
    Column("seq", Counter, primary_key=True, autoincrement=True),
    Column("policy", Id, nullable=False),
    Column("version", Integer, nullable=False),
    Column("at_ms", Millis, nullable=False),
    Column("kind", Word, nullable=False),
    Column("by", Id, nullable=False),
    Column("why", Exact, nullable=False),
    Column("numbers", LargeBinary, nullable=False),
    Index(None, "policy", "seq"),
    sqlite_autoincrement=True,
)
"""What became of versions, by whom, why and with which numbers. The database itself refuses to change or delete a
row."""

shadows: Final = Table(
    "shadows",
    metadata,
    Column("policy", Id, ForeignKey("policies.policy"), primary_key=True),
    Column("version", Integer, nullable=False),
    Column("share", Double, nullable=False),
)
"""The version of a policy that gets copies of calls."""

shadow_tallies: Final = Table(
    "shadow_tallies",
    metadata,
    Column("policy", Id, ForeignKey("policies.policy"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("against", Integer, primary_key=True, autoincrement=False),
    Column("numbers", LargeBinary, nullable=False),
)
"""How a shadow compares with the version whose calls it got copies of: sums, as JSON."""

measures: Final = Table(
    "measures",
    metadata,
    Column("episode_id", Id, ForeignKey("episodes.episode_id"), primary_key=True),
    Column("policy", Id, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("archived_ms", Millis, nullable=False),
    Column("numbers", LargeBinary, nullable=False),
    Index(None, "policy", "archived_ms"),
)
"""What the answers of an archived episode were like, by policy, as JSON; `version` is -1 where it called several."""

alarms: Final = Table(
    "alarms",
    metadata,
    Column("tenant", Id, primary_key=True),
    Column("run", Id, primary_key=True),
    Column("policy", Id, primary_key=True),
    Column("kind", Word, primary_key=True),
    Column("raised_ms", Millis, nullable=False),
    Column("detail", Exact, nullable=False),
    Column("numbers", LargeBinary, nullable=False),
)
"""What is amiss with the rewards and answers of a run now."""
