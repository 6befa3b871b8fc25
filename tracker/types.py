"""The nouns of Hone as frozen records; the glossary of the design, in code.

They are parsed at the door once and never mutated. All times are Unix milliseconds. Token ids are non-negative ints;
log-probabilities are natural logs of the distribution that was sampled from. A field that is `None` is absent.
No I/O, and no import of a framework, client, database or tensor library.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

ID_PATTERN: Final = r"[A-Za-z0-9._:-]{1,128}"
POLICY_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
MAX_TASK_CHARS: Final = 512
DEFAULT: Final = "default"
"""The tenant and the run that always exist."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of every record: frozen, slotted, keyword-only."""


class EpisodeState(enum.StrEnum):
    """Where an episode stands; transitions are in `lifecycle.py`."""

    OPEN = "open"
    FINISHING = "finishing"
    SEALED = "sealed"
    ARCHIVED = "archived"


class EpisodeStatus(enum.StrEnum):
    """How an episode ended."""

    OK = "ok"
    FAILED = "failed"
    INFRA_ERROR = "infra_error"
    CANCELLED = "cancelled"


class CallState(enum.StrEnum):
    """How a call ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"
    LOST = "lost"


class Reason(enum.StrEnum):
    """Why a choice of a call is kept and shown but not trained."""

    NO_IDS = "no_ids"
    NO_PROMPT_IDS = "no_prompt_ids"
    IDS_USAGE_MISMATCH = "ids_usage_mismatch"
    IDS_LOGPROBS_MISMATCH = "ids_logprobs_mismatch"
    BAD_LOGPROB = "bad_logprob"
    UPSTREAM_FAILED = "upstream_failed"
    CONTEXT_LIMIT = "context_limit"
    CLIENT_GONE = "client_gone"
    SUPERSEDED = "superseded"
    AMBIGUOUS_RETRY = "ambiguous_retry"
    LOST = "lost"
    STALE = "stale"
    NOT_POLICY_DISTRIBUTION = "not_policy_distribution"
    ROLE = "role"
    IMAGES = "images"
    TRUNCATED = "truncated"
    UNRECORDED = "unrecorded"
    REDACTED = "redacted"
    """A redaction rule matched: the tokens are not trained."""
    REMOVED = "removed"
    """It could have been trained; its tokens were removed since, by retention."""


class GroupState(enum.StrEnum):
    """Where a group (run, task, round) stands."""

    OPEN = "open"
    READY = "ready"
    TAKEN = "taken"
    TRAINED = "trained"
    SKIPPED = "skipped"


class SkipReason(enum.StrEnum):
    """Why a group is not trained."""

    NO_VARIANCE = "no_variance"
    ONE_MEMBER = "one_member"
    TOO_FEW_SCORED = "too_few_scored"
    NO_IDS = "no_ids"
    EXPIRED = "expired"
    REFUSED = "refused"
    """What is stored is not what engines sampled: a receipt, a chain or an adapter does not hold."""
    WITHDRAWN = "withdrawn"
    """A version that was rolled back since played in it."""


class VersionState(enum.StrEnum):
    """Where a published version stands."""

    RESERVED = "reserved"
    LOADING = "loading"
    ACTIVE = "active"
    RETIRED = "retired"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"


SERVED_STATES: Final = (VersionState.ACTIVE, VersionState.RETIRED)
"""Of versions that agents got at some time; a number that never was served is no age."""


class Scope(enum.StrEnum):
    """What a key may do. `admin` implies the others."""

    AGENT = "agent"
    REWARD = "reward"
    READ = "read"
    TRAINER = "trainer"
    ADMIN = "admin"


class Sampling(Record, frozen=True):
    """The sampling settings a call was really sent with. Neutral values mean the full softmax at `temperature`."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    max_tokens: int | None = None
    seed: int | None = None
    constrained: bool = False
    """Structured output, a grammar or a forced tool choice shaped the answer."""
    biased: bool = False
    """Penalties, logit bias, minimum tokens or forbidden words changed the distribution."""

    def is_policy_distribution(self) -> bool:
        """Whether a trainer can recompute the distribution: softmax of logits / temperature, nothing else."""
        return (
            self.temperature > 0
            and self.top_p == 1.0
            and self.top_k in (-1, 0)
            and self.min_p == 0.0
            and not self.constrained
            and not self.biased
        )


class Usage(Record, frozen=True):
    """What a call to a model that is no policy took, and what it cost at the prices of the settings."""

    prompt_tokens: int
    completion_tokens: int
    """Sum over choices."""
    counted: str = "reported"
    """`reported` by the upstream, or the encoding that the words were counted with, as `tiktoken:o200k_base`."""
    cost: float | None = None
    """In whatever currency the prices are; `None` where there are none."""


class Prompting(Record, frozen=True, array_like=True):
    """How the prompt of a call came about, under a policy that is prompted exactly."""

    mode: str
    """`stored`: the ids of an earlier call stand in it; `rendered`: all of it is what the engine rendered."""
    source: str = ""
    """The earlier call, where there is one."""
    choice: int = 0
    """Which of its choices the agent went on from."""
    num_stored: int = 0
    """Ids of that call, prompt and sampled, with which the prompt begins."""
    num_changed: int = 0
    """Ids that stand where plain rendering would have had others; 0 where it would have been the same prompt."""
    num_replaced: int = 0
    """Ids of the plain rendering that these stand for."""
    reason: str = ""
    """Why nothing stored stands in a rendered prompt."""
    history: bytes = b""
    """Digest of the conversation that was asked about; what later calls are compared with."""
    thoughts: tuple[tuple[int, bytes], ...] = ()
    """(place of a message, digest of the hidden reasoning known of it)."""


class Choice(Record, frozen=True):
    """One sampled answer of a call."""

    index: int
    sampled_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """One for each sampled id, exactly as the engine reported it."""
    finish_reason: str | None = None
    truncated: bool = False
    """The limit was used up and the last id is no end token, whatever `finish_reason` says."""
    message: bytes = b"null"
    """The answer as the agent got it: one JSON value (chat: the assistant message; completions: a string)."""
    reason: Reason | None = None
    """Set where this choice is excluded for a cause known when the call ended."""


class Call(Record, frozen=True):
    """One model request with its answer, immutable once recorded. Its receipt digests are in `receipts.py`."""

    call_id: str
    episode_id: str
    index: int
    """Order in which the calls of the episode began, from 0; given by the store."""
    dialect: str = "chat"
    policy: str | None = None
    """`None`: a model that is no policy, recorded as text only."""
    model: str = ""
    """The model name the agent asked for."""
    version: int = 0
    adapter_digest: str = ""
    """SHA-256 (hex) of `adapter_model.safetensors`, empty for version 0."""
    role: str = "main"
    state: CallState = CallState.COMPLETED
    reason: Reason | None = None
    """Set where every choice of the call is excluded for one cause."""
    detail: str = ""
    """For people: what was amiss."""
    prompt_ids: tuple[int, ...] = ()
    choices: tuple[Choice, ...] = ()
    messages: tuple[bytes, ...] = ()
    """The request's messages, each one JSON value; they are stored once each per episode."""
    request: bytes = b"{}"
    """The rest of the request body (JSON object, without its messages)."""
    sampling: Sampling = Sampling()
    engine: str = ""
    started_ms: int = 0
    ended_ms: int = 0
    key_id: str = ""
    body_digest: str = ""
    retry: int = 0
    """The SDK's retry count: above 0, it supersedes an earlier attempt with the same key and body digest."""
    usage_completion_tokens: int | None = None
    """Sum over choices, as the engine reported it."""
    usage: Usage | None = None
    """Only of a model that is no policy: a policy's tokens are in its ids."""
    prompting: Prompting | None = None
    """Only of a policy that is prompted exactly."""


class Intent(Record, frozen=True):
    """What is written before a request leaves for the engine: it makes a lost call visible later."""

    call_id: str
    episode_id: str
    worker: str
    deadline_ms: int
    started_ms: int
    policy: str | None = None
    model: str = ""
    dialect: str = "chat"
    role: str = "main"
    key_id: str = ""
    body_digest: str = ""
    retry: int = 0
    index: int = 0
    """Filled by the store."""
    version: int = 0
    """Filled by the store: the version the episode is pinned to."""


class Arm(Record, frozen=True, array_like=True):
    """What of a policy an episode, and its group, gets while a version is on trial (`arms.py`)."""

    policy: str
    version: int
    """The version on trial."""
    is_canary: bool
    """Whether it is the one that is got; else the stable one."""
    share: float = 0.0
    """The probability with which it was to be."""


class EpisodeHead(Record, frozen=True):
    """What is fixed about an episode when it is created."""

    episode_id: str
    tenant: str = DEFAULT
    run: str = DEFAULT
    task: str = ""
    group_id: str | None = None
    policy: str | None = None
    version: int | None = None
    """A version asked for at creation: never re-pinned."""
    created_ms: int = 0
    ttl_ms: int | None = None
    metadata: bytes = b"null"
    implicit: bool = False
    """Opened by a call that named no episode: it takes its place in a group when it is first rewarded."""
    key_id: str = ""
    """The key that opened it: what calls with its session key count against. Empty where nobody knows."""
    arms: tuple[Arm, ...] = ()
    """By policy; those of the policies that had a version on trial when its group, or it, was opened."""


class Event(Record, frozen=True):
    """Something that happened to an episode: `repinned`, `lost`, `late_reward` …"""

    at_ms: int
    kind: str
    detail: str = ""


class Reward(Record, frozen=True):
    """One event of the append-only ledger. `value` `None` is "not scored"; never 0, never NaN."""

    reward_id: str
    seq: int
    episode_id: str
    call_id: str | None = None
    name: str = "reward"
    value: float | None = None
    final: bool = True
    source: str = ""
    metadata: bytes = b"null"
    late: bool = False
    created_ms: int = 0


class Credit(Record, frozen=True):
    """How rewards become advantages (`credit.py`). `own` weighs call rewards, `episode` the episode's."""

    kind: str = "group"
    """`group`, `rloo`, `batch` or `none`."""
    std: bool = True
    gamma: float = 1.0
    own: float = 1.0
    episode: float = 1.0


class Retention(Record, frozen=True):
    """How many days after its archive what of an episode is kept; `None` is for ever."""

    tokens_days: float | None = None
    """Token ids and log-probabilities."""
    text_days: float | None = None
    """Messages, requests and answers."""
    metadata_days: float | None = None
    """Metadata of the episode; metadata and source of its rewards."""


class Redaction(Record, frozen=True):
    """A rule for what is not kept of a call (`redaction.py`)."""

    name: str
    """Stands in the place of what is hidden, as `[name]`."""
    pattern: str
    """A regular expression as RE2 knows them, looked for in each string by itself."""
    action: str = "mask"
    """`mask`: hidden, and an answer it is found in is not trained; `exclude`: neither words nor ids of it are kept."""
    where: str = "both"
    """`prompt`, `answer` or `both`. What an answer says comes back in the prompts after it."""
    ids: str = "keep"
    """Of `mask`. `keep`: token ids stay, as context; `drop`: those of the call go, and it is excluded."""


class RunSettings(Record, frozen=True):
    """The settings of a run; they freeze at its first episode."""

    run: str
    mode: str = "train"
    """`train` or `eval`. Episodes of an eval run have no group and honour the agent's sampling."""
    group_size: int = 8
    groups_per_step: int = 1
    credit: Credit = Credit()
    pin: str = "episode"
    """`episode`: the version stays for the whole episode; `call`: each call takes the active one."""
    record: str = "strict"
    """`strict` or `best_effort`."""
    staleness: int = 2
    """How many versions a call may lag behind the policy when it is trained."""
    on_stale: str = "expire"
    """`expire`, `train` or `wait`."""
    group_timeout_s: float = 600.0
    reward_grace_s: float = 60.0
    idle_s: float = 120.0
    loss: str = "dapo"
    """A `loss_type` of TRL's GRPO."""
    sampling: str = "policy"
    """`policy`: the policy's sampling overrides the agent's; `agent`: the agent's is honoured."""
    constrained: str = "exclude"
    """`exclude` or `train`: what becomes of calls whose output a grammar or a forced tool shaped."""
    roles: dict[str, str] = {}
    """role -> `train`, `context` (in the tree, masked) or `drop` (not in the tree). A role that is not named is
    trained, but for `title`, which is dropped."""
    reward_weights: dict[str, float] = {}
    """reward name -> weight; a name not listed weighs 1."""
    roles_as_policies: bool = False
    families: dict[str, float] = {}
    """family -> weight: the share of each step's groups that its tasks have (`families.py`). Empty: any task."""
    truncated: str = "train"
    """What becomes of an episode in which an answer that would be trained was cut by its limit. `train`: nothing;
    `mask`: that answer is not trained, the episode stays in the baseline; `drop`: it is no member of its group."""
    redactions: tuple[Redaction, ...] = ()
    """Rules for what is not kept of its calls, behind those of the settings."""
    retention: Retention = Retention()
    """What is kept how long. It is no part of what episodes are compared by, so it may change at any time."""


class Version(Record, frozen=True):
    """One published adapter of a policy."""

    policy: str
    version: int
    epoch: int = 0
    state: VersionState = VersionState.RESERVED
    folder: str = ""
    """One name under `adapters/` in the data folder; on engines the adapter has this name too."""
    digest: str = ""
    metrics: bytes = b"{}"
    probe: bytes = b"null"
    detail: str = ""
    """How the probe went, or why the swap failed."""
    created_ms: int = 0
    activated_ms: int | None = None
    """When new pins first got it; `None` if they never did. Set by `activate` alone."""


class ProbePoint(Record, frozen=True):
    """One token after one prompt, with its log-probability under this version, the one before, and the base."""

    prompt_ids: tuple[int, ...]
    token_id: int
    logprob: float
    previous: float
    base: float


class Probe(Record, frozen=True):
    """What a version is recognised by; `noise` is the trainer's estimate of the arithmetic's own scatter in nats."""

    points: tuple[ProbePoint, ...]
    noise: float = 0.0


class Policy(Record, frozen=True):
    """A policy as the ledger knows it: its epoch rises at each rollback; `active` is the version new pins get."""

    policy: str
    epoch: int = 0
    active: int = 0


class KeyLimits(Record, frozen=True):
    """What calls with one key may take together, over all workers; `None` is no limit."""

    requests_per_minute: int | None = None
    """In any 60 seconds."""
    max_concurrent: int | None = None
    """Calls in flight."""
    token_budget: int | None = None
    """Prompt and sampled tokens together, for the life of the key."""
    token_budget_per_day: int | None = None
    """The same for each day, which begins at midnight UTC."""


NO_LIMITS: Final = KeyLimits()


class Key(Record, frozen=True):
    """An API key as stored: never the key itself, only its digest."""

    key_id: str
    digest: str
    """SHA-256 (hex) of the key."""
    tenant: str = DEFAULT
    scopes: tuple[Scope, ...] = ()
    label: str = ""
    created_ms: int = 0
    expires_ms: int | None = None
    revoked_ms: int | None = None
    limits: KeyLimits = NO_LIMITS


class KeyUsage(Record, frozen=True):
    """What calls with a key have taken."""

    calls: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0

    @property
    def tokens(self) -> int:
        """What a budget counts."""
        return self.prompt_tokens + self.sampled_tokens


class Act(Record, frozen=True):
    """An administrative act, as the audit log keeps it. Nothing in it is a secret."""

    at_ms: int
    tenant: str
    key_id: str
    """Whose key it was done with; `cli` for the command line of the data folder."""
    act: str
    """`key.create`, `run.change`, `episode.delete` …"""
    target: str
    """The id of what it was done to."""
    detail: bytes = b"{}"
    """A JSON object."""
    outcome: str = "ok"
    """`ok`, or the code of the error that refused it."""
    seq: int = 0
    """Given by the ledger."""


class CallKind(Record, frozen=True):
    """How many calls of an archived episode have this policy, version and role."""

    policy: str
    """Empty for models that are no policy."""
    version: int
    role: str
    num_calls: int


class Spent(Record, frozen=True):
    """What the calls of an episode took."""

    engine_ms: int = 0
    """From intent to record, summed over calls to policies: what engines were busy with, as seen from here."""
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    upstream_cost: float | None = None
    """Of calls to models that are no policy and have a price."""


class EpisodeRow(Record, frozen=True):
    """An episode as SQL tells it, for reading endpoints; counters are filled when it is archived."""

    head: EpisodeHead
    state: EpisodeState = EpisodeState.OPEN
    status: EpisodeStatus | None = None
    member: int | None = None
    """Its place in the group."""
    reward: float | None = None
    """Effective reward without call rewards; `None` is unscored."""
    versions: dict[str, int] = {}
    num_calls: int = 0
    num_samples: int = 0
    num_excluded: int = 0
    num_truncated: int = 0
    num_raw_tokens: int = 0
    num_distinct_tokens: int = 0
    ended_ms: int | None = None
    archived_ms: int | None = None
    events: tuple[Event, ...] = ()
    removed: tuple[str, ...] = ()
    """What retention removed of it: `tokens`, `text`, `metadata`."""
    key_ids: tuple[str, ...] = ()
    """The keys that its calls were made with; only told when it is archived."""
    measures: dict[str, tuple[int, object]] = {}
    """policy -> (its version, what its answers were like); only told when it is archived."""
    spent: Spent | None = None
    """`None` before it is archived, and where nobody noted it then."""
    kinds: tuple[CallKind, ...] = ()
    """What calls it has; only told when it is archived."""


class EpisodeFilter(Record, frozen=True):
    """Which episodes of a tenant are asked for; what is `None` is not asked about."""

    run: str | None = None
    task: str | None = None
    status: str | None = None
    """A state or a status."""
    policy: str | None = None
    """With `version` and `role`: it is archived, and one of its calls has all of them that are given."""
    version: int | None = None
    role: str | None = None
    min_reward: float | None = None
    """Effective reward; an episode that is not scored is outside of any range."""
    max_reward: float | None = None


class EpisodePage(Record, frozen=True):
    """A part of a list of episodes, newest first."""

    rows: tuple[EpisodeRow, ...]
    older: str | None = None
    """The cursor of the next page; `None` on the last."""
    newer: str | None = None
    """The cursor of the page before; `None` on the first."""


class Member(Record, frozen=True):
    """An episode's standing in its group."""

    episode_id: str
    status: EpisodeStatus | None = None
    state: EpisodeState = EpisodeState.OPEN
    reward: float | None = None
    advantage: float | None = None
    member: bool = True
    """Whether it counts in baseline and deviation."""
    why: str = ""
    """Where it does not count: `infra_error`, `cancelled`, `truncated`, `unscored` …"""
    truncated: bool = False
    """An answer of it was cut by its limit, and the run drops such episodes."""


class Group(Record, frozen=True):
    """(run, task, round): the episodes compared with each other."""

    group_id: str
    tenant: str
    run: str
    task: str
    round: int
    size: int
    state: GroupState = GroupState.OPEN
    reason: SkipReason | None = None
    members: tuple[Member, ...] = ()
    created_ms: int = 0
    arms: tuple[Arm, ...] = ()
    """What every member gets of a policy with a version on trial."""


class GroupShare(Record, frozen=True):
    """What became of a group for one policy."""

    policy: str
    batch_id: str | None
    """`None` where it was skipped before any batch."""
    state: GroupState
    reason: SkipReason | None = None
    epoch: int | None = None
    step: int | None = None
    """The batch's."""


class InFlight(Record, frozen=True):
    """A group that a policy's trainer has still to see, and how old it is."""

    group_id: str
    tenant: str
    run: str
    task: str
    round: int
    size: int
    state: GroupState
    """Open, ready or taken."""
    num_live: int
    """Members with a place that have not ended."""
    num_seated: int
    lag: int
    """Versions of the policy that became active since its oldest member began: none of its calls lags more."""
    created_ms: int


class CallCredit(Record, frozen=True):
    """The frozen advantage of one call, all of whose choices share it."""

    episode_id: str
    call_id: str
    advantage: float


class Batch(Record, frozen=True):
    """What a trainer took for one step: group ids and the credit frozen with them."""

    batch_id: str
    policy: str
    step: int
    epoch: int
    fence: int
    group_ids: tuple[str, ...] = ()
    credit: tuple[CallCredit, ...] = ()
    state: str = "taken"
    """`taken`, `trained` or `dropped`."""
    version: int | None = None
    """The version this step published."""
    manifest: bytes = b"null"
    metrics: bytes = b"{}"
    created_ms: int = 0
