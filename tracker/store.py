"""The three protocols through which everything else reaches storage, and what their methods promise.

`EpisodeStore` is Redis (or memory): the calls of an episode until it is archived. `Ledger` is SQL: episodes, groups,
rewards, archived timelines, keys, runs, policies. `Batches` is the trainer's side of SQL: lease, take, commit.
One contract suite runs on every implementation. Every write is safe to repeat. Errors are those of `errors.py`;
a store that cannot be reached raises `Unavailable`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from tracker.claims import Claims, Note
from tracker.evidence import Sealed
from tracker.lines import CarriedBatch, EpisodeLineage
from tracker.outcomes import Progress
from tracker.overview import Overview, RunCounts, SchemaState, StepTold, VersionReward
from tracker.quotas import Quotas
from tracker.release_store import ReleaseLedger
from tracker.trials import ReleaseEvent
from tracker.types import (
    Act,
    Batch,
    Call,
    EpisodeFilter,
    EpisodeHead,
    EpisodePage,
    EpisodeRow,
    EpisodeState,
    EpisodeStatus,
    Event,
    Group,
    GroupShare,
    GroupState,
    InFlight,
    Intent,
    Key,
    KeyUsage,
    Policy,
    Record,
    Reward,
    RunSettings,
    SkipReason,
    Version,
)
from tracker.verification import Stored


class Begun(Record, frozen=True):
    """What `begin_call` decided."""

    index: int
    """Order of the call in its episode."""
    version: int
    """The version the call is pinned to (0 for a model that is no policy)."""
    repinned_from: int | None = None
    """The version the episode was pinned to until now, where that one became too old or was withdrawn."""
    engine: str | None = None
    """The engine that the episode's calls to this policy go to."""
    mark: bytes = b""
    """What the first call of the episode that had a mark looked like; this one's own if it is the first."""


class EpisodeView(Record, frozen=True):
    """Everything the episode store holds of one episode, calls expanded, in order of `index`."""

    head: EpisodeHead
    state: EpisodeState
    status: EpisodeStatus | None
    calls: tuple[Call, ...]
    intents: tuple[Intent, ...]
    pins: dict[str, int]
    events: tuple[Event, ...] = ()


class Routing(Record, frozen=True):
    """What `begin_call` needs to know of a policy, held in the store so that all workers agree."""

    active: int = 0
    oldest: int = 0
    """Versions below this are too old: an episode pinned to one is re-pinned at its next call."""
    withdrawn: tuple[int, ...] = ()


class EpisodeStore(Claims, Quotas, Protocol):
    """Open episodes and their calls; how calls find implicit ones is in `claims.py`, limits of keys in `quotas.py`."""

    @property
    def num_waiting(self) -> int:
        """Writes of this process that have not been answered."""
        ...

    async def ping(self) -> None:
        """Raise `Unavailable` unless the store answers within 100 ms; raise `SettingsError` if it is too weak."""
        ...

    async def close(self) -> None: ...

    async def set_routing(self, policy: str, routing: Routing) -> None: ...

    async def get_routing(self, policy: str) -> Routing: ...

    async def pins(self, policy: str) -> dict[int, int]:
        """version -> number of unsealed episodes pinned to it (none with a count of zero)."""
        ...

    async def open(self, head: EpisodeHead, idle_ms: int | None = None) -> None:
        """Create the episode; a second time is a no-op. A deleted id is refused with `Gone`. With `idle_ms` it can be
        claimed, and ends once it was idle for so long."""
        ...

    async def head(self, episode_id: str) -> EpisodeHead:
        """Raise `NotFound` if the store does not hold the episode."""
        ...

    async def begin_call(self, intent: Intent, pin: str, engines: Sequence[str] | None, mark: bytes = b"") -> Begun:
        """Write the intent and pin the version. `pin` is the run's: `episode` or `call`.

        A head with a fixed `version` always gets that one. `engines` are those the call may go to, best first: the
        episode stays on its engine for the policy if it is one of them, else it moves to the first. `mark` is kept
        if it is the first that is not empty. Raises `Gone` unless the episode is open, `NotFound` if unknown,
        `Unavailable` if the store is full.
        """
        ...

    async def end_call(self, call: Call, note: Note | None = None) -> bool:
        """Append the call and drop its intent. True: recorded (also if it was before). False: the intent is gone
        (abandoned as lost, or the episode deleted), so nothing of the answer may be released. `note` is left in the
        same step, for claims."""
        ...

    async def abandon_call(self, episode_id: str, call_id: str, at_ms: int) -> bool:
        """Turn an intent into a call in state `lost`; False if the intent is gone already."""
        ...

    async def finish(self, episode_id: str, status: EpisodeStatus) -> EpisodeState:
        """Open -> finishing; the same status again is a no-op, another raises `Conflict`."""
        ...

    async def seal(self, episode_id: str) -> bool:
        """Finishing -> sealed, only with no intents left; releases pins. True if sealed now or before."""
        ...

    async def view(self, episode_id: str) -> EpisodeView:
        """All of it, expanded. A call whose bytes break their digest comes back excluded, never wrong."""
        ...

    async def num_in_flight(self, episode_id: str) -> int: ...

    async def add_event(self, episode_id: str, event: Event) -> None: ...

    async def expire(self, episode_id: str, after_ms: int) -> None:
        """The archive has committed: let the keys go."""
        ...

    async def delete(self, episode_id: str) -> None:
        """Drop everything and leave a tombstone: a call in flight cannot bring it back."""
        ...

    async def heartbeat(self, worker: str, ttl_ms: int) -> None: ...

    async def due_calls(self, now_ms: int) -> list[tuple[str, str]]:
        """(episode_id, call_id) of intents past their deadline or of a worker without heartbeat."""
        ...

    async def finishing(self) -> list[str]:
        """Episodes in finishing or sealed: to be sealed and archived."""
        ...


class Ledger(ReleaseLedger, Protocol):
    """SQL: what must outlive everything. Every look-up is by (tenant, id)."""

    async def ping(self) -> None: ...

    async def overview(self) -> Overview:
        """All of it in numbers, as of one moment."""
        ...

    async def progress(self, tenant: str, run: str, threshold: float) -> Progress:
        """What the newest archived episodes of a run came to; raises `NotFound`."""
        ...

    async def newest_run(self, tenant: str) -> str | None:
        """The run of the tenant's newest episode that was archived."""
        ...

    async def run_counts(self, tenant: str) -> dict[str, RunCounts]:
        """run -> its episodes and groups by state; runs without any are left out."""
        ...

    async def usage_by_day(self, tenant: str, first_day: int) -> dict[int, KeyUsage]:
        """day -> what calls with the tenant's keys took on it, from this day on."""
        ...

    async def schema_state(self) -> tuple[SchemaState, str]:
        """How the database compares with this version of Hone, and that in words."""
        ...

    async def close(self) -> None: ...

    # keys, tenants, secrets
    async def add_key(self, key: Key, act: Act | None = None) -> None: ...

    async def find_key(self, digest: str) -> Key | None:
        """The key with this digest, or that had it before a rotation: then it expires when the grace is over."""
        ...

    async def get_key(self, tenant: str, key_id: str) -> Key: ...

    async def list_keys(self, tenant: str) -> list[Key]:
        """In the order they were made."""
        ...

    async def key_page(self, tenant: str, limit: int, cursor: str | None) -> tuple[list[Key], str | None]:
        """Newest first."""
        ...

    async def rotate_key(self, tenant: str, key_id: str, digest: str, until_ms: int, act: Act | None = None) -> Key:
        """The key has another digest from now on; every one that it had is good until `until_ms` at most. `Conflict`
        if it was revoked or has expired."""
        ...

    async def limit_key(
        self, tenant: str, key_id: str, changes: Mapping[str, int | None], act: Act | None = None
    ) -> Key:
        """Change the limits that are named; `None` takes one away."""
        ...

    async def revoke_key(self, tenant: str, key_id: str, at_ms: int, act: Act | None = None) -> Key:
        """From now on the key is good for nothing; the time of the first revocation stays."""
        ...

    async def add_usage(self, taken: Mapping[tuple[str, int], KeyUsage]) -> None:
        """Add what calls took, by (key id, day). Not safe to repeat: a count whose commit nobody heard of may be
        counted twice."""
        ...

    async def key_usage(self, key_ids: Sequence[str], day: int) -> dict[str, tuple[KeyUsage, KeyUsage]]:
        """key id -> what it took in all, and on this day."""
        ...

    # the audit log
    async def add_act(self, act: Act) -> None: ...

    async def list_acts(self, tenant: str, limit: int, cursor: str | None) -> tuple[list[Act], str | None]:
        """Newest first."""
        ...

    async def secret(self, name: str) -> bytes:
        """32 random bytes under this name, created at first use, the same for every gateway."""
        ...

    # runs
    async def put_run(self, tenant: str, run: RunSettings, act: Act | None = None) -> RunSettings:
        """Create or change; `Conflict` naming the field if it froze and differs. `default` always exists."""
        ...

    async def get_run(self, tenant: str, run: str) -> RunSettings: ...

    async def list_runs(self, tenant: str) -> list[RunSettings]: ...

    # episodes and groups
    async def create_episode(
        self, head: EpisodeHead, idempotency_key: str | None, body_digest: str, *, bounded: bool = False
    ) -> tuple[EpisodeHead, bool]:
        """Insert and give it a place in the open round of (run, task), in one transaction; freezes the run.

        Returns the stored head (with `group_id`; None in eval runs) and whether it is new. The same idempotency key
        and digest give the same head back, also when it has ended; another digest raises `Conflict`. `bounded`:
        `TooManyRequests` where it would need another round and what is in flight is as much as can be trained before
        it is too stale (`in_flight.py`); decided in the same transaction.
        """
        ...

    async def get_episode(self, tenant: str, episode_id: str) -> EpisodeRow: ...

    async def list_episodes(
        self, tenant: str, *, run: str | None, task: str | None, status: str | None, limit: int, cursor: str | None
    ) -> tuple[list[EpisodeRow], str | None]:
        """Newest first; `status` is a state or a status. `BadRequest` on a cursor that is none of ours."""
        ...

    async def find_episodes(
        self, tenant: str, wanted: EpisodeFilter, limit: int, cursor: str | None = None
    ) -> EpisodePage:
        """Newest first, by more than `list_episodes`, and with a cursor back. `BadRequest` as there."""
        ...

    async def score_episodes(self) -> int:
        """Bring what lists of rewards are filtered by up to date; how many episodes were not."""
        ...

    async def note_kinds(self, limit: int) -> int:
        """Note the kinds of calls of up to `limit` episodes that were archived without; how many there were."""
        ...

    async def open_episodes(self, older_than_ms: int) -> list[EpisodeRow]:
        """Episodes of every tenant not archived yet and created before that time, for the sweeper."""
        ...

    async def end_episode(self, episode_id: str, status: EpisodeStatus, at_ms: int) -> None:
        """Commit that it ends (before Redis `finish`). Same status again: no-op; another: `Conflict`. Frees its place
        on `infra_error` and `cancelled` while the round is not ready."""
        ...

    async def archive_episode(self, row: EpisodeRow, blob: bytes, digest: str, receipts: bytes | None = None) -> bool:
        """In one transaction: insert the timeline (on conflict do nothing), state archived with the counters of `row`.
        `digest` is the chain over the receipts of its calls. False if it was archived or deleted before."""
        ...

    async def get_timeline(self, episode_id: str) -> bytes | None: ...

    async def episodes_of_key(self, tenant: str, key_id: str, limit: int) -> list[str]:
        """Up to `limit` episodes that the key opened or made a call in and that are not deleted, oldest first."""
        ...

    async def unsorted_episodes(self, tenant: str, limit: int) -> list[str]:
        """Up to `limit` archived episodes of which nobody has written down yet whose they are."""
        ...

    async def sort_episode(self, episode_id: str, key_ids: Sequence[str]) -> None:
        """Write down the keys that an archived episode's calls were made with."""
        ...

    async def apply_retention(self, limit: int = 100) -> int:
        """Remove what runs do not keep any longer from up to `limit` archived episodes; how many were changed."""
        ...

    async def delete_episode(self, tenant: str, episode_id: str) -> None: ...

    async def add_event(self, episode_id: str, event: Event) -> None: ...

    async def list_groups(
        self,
        tenant: str,
        *,
        run: str | None,
        task: str | None,
        limit: int,
        cursor: str | None,
        state: str | None = None,
    ) -> tuple[list[Group], str | None]:
        """Newest first, with members. `BadRequest` on a state or a cursor that is none."""
        ...

    async def get_group(self, tenant: str, group_id: str) -> Group: ...

    async def group_shares(self, group_ids: Sequence[str]) -> dict[str, list[GroupShare]]:
        """group -> what became of it for each policy, for groups that are not open."""
        ...

    async def settle_groups(self, now_ms: int) -> list[Group]:
        """Move open rounds to ready or skipped by the rules of the contract; returns those that moved."""
        ...

    # rewards
    async def add_reward(
        self, tenant: str, reward: Reward, idempotency_key: str | None, body_digest: str
    ) -> tuple[Reward, bool]:
        """Append (`seq` and `late` are given here); returns the stored event and whether it is new. A final one also
        commits the end of its episode (status ok) unless it ended already. Same key, other digest: `Conflict`."""
        ...

    async def rewards(self, episode_id: str) -> list[Reward]:
        """All events of the episode and its calls, by `seq`."""
        ...

    # policies and versions
    async def ensure_policy(self, policy: str) -> Policy: ...

    async def list_policies(self) -> list[Policy]: ...

    async def reserve_version(self, policy: str, epoch: int | None, at_ms: int) -> Version:
        """Insert the next number; `Conflict` if `epoch` is given and is not the policy's. Never re-used."""
        ...

    async def put_version(self, version: Version) -> None:
        """Store folder, digest, state, metrics, probe and detail of a reserved version."""
        ...

    async def get_version(self, policy: str, version: int) -> Version: ...

    async def find_version(self, policy: str, folder: str) -> Version | None: ...

    async def list_versions(self, policy: str) -> list[Version]:
        """By number; without version 0, which needs no row."""
        ...

    async def activate(self, policy: str, version: int, epoch: int) -> None:
        """The version is active, and new pins get it. `Conflict` unless `epoch` is the policy's."""
        ...

    async def rollback(self, policy: str, version: int, event: ReleaseEvent | None = None) -> Policy:
        """Raise the epoch, activate `version`, mark later versions withdrawn, on trial or not; batches of the old epoch
        not yet trained are dropped and their groups skipped as expired, groups that withdrawn versions played in are
        skipped as withdrawn. `event` is noted in the same transaction."""
        ...


class Batches(Protocol):
    """The trainer's side of SQL. Every write carries the lease's fence; a lost one raises `LeaseLost`."""

    async def take_lease(self, policy: str, holder: str, now_ms: int, ttl_ms: int) -> int | None:
        """The fence (rises with every new holder), or None while another holder's lease has not expired. The same
        holder renews and keeps its fence."""
        ...

    async def release_lease(self, policy: str, fence: int) -> None: ...

    async def ready_heads(self, policy: str) -> list[Group]:
        """Ready groups with calls of this policy not yet taken for it, in the order they became ready, without their
        members."""
        ...

    async def ready_groups(self, policy: str, group_ids: Sequence[str]) -> list[Group]:
        """Those of these groups that are ready for this policy, with their members, in the order they became ready."""
        ...

    async def tasks_taken(self, policy: str, tenant: str, run: str) -> dict[str, int]:
        """task -> groups of the run that were taken for this policy and not dropped."""
        ...

    async def groups_in_flight(self, policy: str) -> list[InFlight]:
        """The groups of all runs that this policy's trainer has still to see, oldest first."""
        ...

    async def take(self, batch: Batch, num_rewards: int | None = None) -> Batch:
        """One transaction: the batch, its groups (unique by group and policy), the frozen credit; groups -> taken;
        members get their final advantage in `credit`. (policy, step) is unique: the same batch id again is a no-op,
        another raises `Conflict`. `num_rewards` is how many events of the members the credit was computed from: if
        there are others by now, `Conflict` with code `rewards_moved`, so that no reward is neither used nor late."""
        ...

    async def skip_group(self, group_id: str, reason: SkipReason, policy: str, fence: int) -> None: ...

    async def last_batches(self, policy: str, limit: int) -> list[Batch]:
        """Newest step first."""
        ...

    async def mark_trained(self, batch: Batch) -> None:
        """State, version, manifest and metrics of `batch`; its groups -> trained once every policy's share is."""
        ...

    async def drop_batch(self, batch_id: str, reason: SkipReason, fence: int, detail: str = "") -> None:
        """Its shares are skipped for this reason; its step may be taken again. `detail` is kept with its metrics."""
        ...

    async def episode_lineage(self, tenant: str, episode_id: str) -> EpisodeLineage:
        """The batches and versions that were trained on it; a deleted episode is found too."""
        ...

    async def version_lineage(
        self, tenant: str, policy: str, version: int, limit: int, cursor: str | None
    ) -> tuple[list[CarriedBatch], str | None]:
        """The batches that a version carries, its own and those before it on its line, newest first."""
        ...

    async def num_groups(self, states: Sequence[GroupState]) -> int: ...

    async def list_batches(
        self, policy: str | None = None, run: tuple[str, str] | None = None, batch_ids: Sequence[str] = ()
    ) -> list[Batch]:
        """Oldest first: all, or those of a policy, of a run (tenant, run), of these ids; `NotFound` names one that is
        none."""
        ...

    async def sealed(self, episode_id: str) -> Sealed | None:
        """The archive of an episode as it lies in SQL; `None` if there is none."""
        ...

    async def stored_batch(self, batch_id: str) -> Stored:
        """A batch with the archives of its groups, as of one moment."""
        ...

    async def skipped_groups(self, run: tuple[str, str]) -> dict[str, int]:
        """reason -> groups of the run (tenant, run) that were not trained at all."""
        ...

    async def steps(self, policy: str, limit: int, cursor: str | None) -> tuple[list[StepTold], str | None]:
        """The policy's batches without what proves them, newest step of the newest epoch first."""
        ...

    async def lease_until(self, policy: str) -> int | None:
        """Until when a trainer holds the policy; `None` if none ever did."""
        ...

    async def version_rewards(
        self, tenant: str, policy: str, versions: range, run: str | None = None
    ) -> dict[int, VersionReward]:
        """version -> what the tenant's archived episodes of it came to, in one run or in all."""
        ...

    async def groups_of_batch(self, tenant: str, batch_id: str) -> tuple[list[Group], int]:
        """The tenant's groups in a batch, with their members, and how many there are of others."""
        ...

    async def own_episodes(self, tenant: str, episode_ids: Collection[str]) -> frozenset[str]:
        """Those of these episodes that are the tenant's and were not deleted."""
        ...
