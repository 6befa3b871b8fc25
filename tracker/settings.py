"""What every process must agree on: the data folder, the two stores, the policies and the runs.

Settings are `HONE_X` variables or `x` in `hone.toml`; a variable wins over the file. They are read once, at start,
from the mapping and the folder that are passed in; nothing else reads the environment. A value that cannot work is
refused with `SettingsError`, which names the setting and a value that would do. What only the gateway or only the
trainer needs is left to their own settings, which read the same file through `read_settings`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tracker.errors import BadRequest, SettingsError
from tracker.redaction import parse_rules
from tracker.release_settings import ReleaseSettings
from tracker.sealing import MasterKeys
from tracker.types import DEFAULT, ID_PATTERN, POLICY_PATTERN, Credit, Record, Redaction, Retention, RunSettings

SETTINGS_FILE: Final = "hone.toml"
PREFIX: Final = "HONE_"
FROM_FILES: Final = ("redis_url", "database_url", "engine_key", "trainer_key", "encryption_key")
"""What holds a password or a key, and may be read from the file that `HONE_X_FILE` names."""
CREDIT_KINDS: Final = ("group", "rloo", "batch", "none")
RUN_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "mode": ("train", "eval"),
    "pin": ("episode", "call"),
    "record": ("strict", "best_effort"),
    "on_stale": ("expire", "train", "wait"),
    "sampling": ("policy", "agent"),
    "constrained": ("exclude", "train"),
    "truncated": ("train", "mask", "drop"),
}
REDIS_SCHEMES: Final = ("redis://", "rediss://", "unix://", "redis+sentinel://")
RUN_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "group_size": (1, 4096),
    "groups_per_step": (1, 4096),
    "staleness": (0, 64),
    "group_timeout_s": (0, 1e8),
    "reward_grace_s": (0, 1e8),
    "idle_s": (0, 1e8),
}
MAX_WEIGHT: Final = 1e6
MAX_DAYS: Final = 36_500.0
LEAST_SHARE: Final = 1e-6
MAX_FAMILY_CHARS: Final = 128
ROLE_RULES: Final = ("train", "context", "drop")
SettingsT = TypeVar("SettingsT", bound=BaseModel)


class Settings(BaseModel):
    """Base of every settings tree: frozen, and a name that nobody defined is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LoraSettings(Settings):
    """The shape of a policy's adapters; engines are started for this rank."""

    r: int = Field(default=16, ge=1, le=512)
    alpha: float = Field(default=32.0, gt=0)
    target: str | tuple[str, ...] = "all-linear"


class SamplingSettings(Settings):
    """What trained calls of a policy are sampled with, whatever the agent asks for."""

    temperature: float = Field(default=1.0, gt=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=-1, ge=-1)
    min_p: float = Field(default=0.0, ge=0, le=1)


class PolicySettings(Settings):
    """One trainable model: `model` is the engine's name for the base, a folder or a hub id."""

    name: str = Field(pattern=f"^(?:{POLICY_PATTERN})$")
    model: str = Field(min_length=1)
    lora: LoraSettings = LoraSettings()
    sampling: SamplingSettings = SamplingSettings()
    prompting: Literal["plain", "exact"] = "plain"
    """`exact`: the ids of earlier calls stand in for what would be tokenised again; see docs/exact-prompting.md."""
    aliases: tuple[str, ...] = ()
    """Other model names by which agents may ask for this policy."""
    release: ReleaseSettings = ReleaseSettings()
    """How its versions get their traffic; see docs/releases.md."""
    trainer: dict[str, Any] = {}
    """Settings of this policy's trainer, over those of the `[trainer]` table; checked by the trainer."""


class StoreSettings(Settings):
    """Where everything lies and what is trained; the same for gateway, trainer and engine."""

    data_dir: Path
    redis_url: str | None = None
    """`None`: the embedded redis-server in the data folder."""
    database_url: str
    policies: tuple[PolicySettings, ...] = ()
    runs: tuple[RunSettings, ...] = ()
    redactions: tuple[Redaction, ...] = ()
    """Rules for what is not kept of any call."""
    encryption_key: MasterKeys | None = None
    """What tenants' keys are wrapped with; `None`: archives are stored in plain."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    @field_validator("redis_url")
    @classmethod
    def _redis_scheme(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(REDIS_SCHEMES):
            raise ValueError(
                "write redis://HOST:PORT/DB, rediss://…, unix:///SOCKET, or redis+sentinel://HOST:PORT,HOST:PORT/NAME"
            )
        return value

    @field_validator("database_url")
    @classmethod
    def _database_scheme(cls, value: str) -> str:
        if not value.startswith(("sqlite:///", "postgresql://")):
            raise ValueError("write sqlite:///PATH or postgresql://USER@HOST/DATABASE")
        return value

    @model_validator(mode="after")
    def _names_are_distinct(self) -> StoreSettings:
        names = [name for policy in self.policies for name in (policy.name, *policy.aliases)]
        _refuse_repeats("policies", names)
        _refuse_repeats("runs", [run.run for run in self.runs])
        return self

    @property
    def adapters_dir(self) -> Path:
        """One folder for each version that was published."""
        return self.data_dir / "adapters"

    @property
    def checkpoints_dir(self) -> Path:
        return self.data_dir / "checkpoints"

    def policy(self, name: str) -> PolicySettings | None:
        """The policy of this name or alias."""
        return next((policy for policy in self.policies if name == policy.name or name in policy.aliases), None)


def read_settings(env: Mapping[str, str], cwd: Path) -> dict[str, Any]:
    """The tree in `hone.toml` (or the file `HONE_CONFIG` names), with `HONE_X` variables laid over its top level.

    Empty variables are absent. A secret may lie in a file of its own, which `HONE_X_FILE` names. Values keep the type
    they have in `hone.toml`; those of variables are strings.
    """
    tree = _read_file(env, cwd)
    for name, value in env.items():
        if name.startswith(PREFIX) and name != "HONE_CONFIG" and value.strip():
            tree[name.removeprefix(PREFIX).lower()] = value.strip()
    for name in FROM_FILES:
        if path := tree.pop(f"{name}_file", None):
            tree[name] = _secret(name, cwd / str(path))
    return tree


def _secret(name: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{PREFIX}{name.upper()}_FILE: {path} cannot be read: {error}.") from error


def load_stores(env: Mapping[str, str], cwd: Path) -> StoreSettings:
    """Read and check the part of the settings that all processes share."""
    return stores_of(read_settings(env, cwd), cwd)


def stores_of(tree: Mapping[str, Any], cwd: Path) -> StoreSettings:
    """The shared part of a settings tree; relative paths start at `cwd`."""
    data_dir = (cwd / Path(str(tree.get("data_dir", ".hone"))).expanduser()).resolve()
    fields: dict[str, Any] = {
        "data_dir": data_dir,
        "redis_url": tree.get("redis_url"),
        "database_url": tree.get("database_url", f"sqlite:///{data_dir / 'hone.db'}"),
        "policies": _policies(tree.get("policies", ())),
        "runs": tuple(_runs(tree.get("runs", ()))),
        "redactions": _redactions(tree.get("redactions", ())),
        "encryption_key": _master_keys(tree.get("encryption_key")),
    }
    return validated(StoreSettings, fields)


def validated(model: type[SettingsT], fields: Mapping[str, Any]) -> SettingsT:
    """Build a settings tree, turning pydantic's errors into one `SettingsError` that names each setting."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, item['loc'])) or 'settings'}: {_said(item['msg'])}" for item in error.errors()]
        raise SettingsError("; ".join(lines)) from error


def _said(message: str) -> str:
    """What one of our validators said, without pydantic's words before it."""
    return message.removeprefix("Value error, ")


def parse_run(fields: Mapping[str, Any]) -> RunSettings:
    """Check the fields of a run, as `POST /v1/runs` and `[[runs]]` give them; raises `BadRequest` naming the field.

    >>> parse_run({"run": "a", "credit": "rloo"}).credit.kind
    'rloo'
    """
    known = RunSettings.__struct_fields__
    for name in fields:
        if name not in known:
            raise BadRequest(f"A run has no field {name!r}; it has {', '.join(known)}.", param=name)
    if "run" not in fields:
        raise BadRequest("Give the run a name: run.", param="run")
    present = {name: value for name, value in fields.items() if value is not None}
    present["credit"] = _credit(present.get("credit", {}))
    _refuse_unknown("retention", present.get("retention"), Retention)
    present["redactions"] = parse_rules(present.get("redactions", ()))
    try:
        run = msgspec.convert(present, RunSettings)
    except msgspec.ValidationError as error:
        raise BadRequest(f"{error}.", param=_param_of(str(error))) from error
    _check_run(run)
    return run


def _read_file(env: Mapping[str, str], cwd: Path) -> dict[str, Any]:
    named = env.get("HONE_CONFIG", "").strip()
    path = cwd / (named or SETTINGS_FILE)
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError as error:
        if named:
            raise SettingsError(f"HONE_CONFIG: there is no file {path}.") from error
        return {}
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: {error}") from error


def _redactions(value: object) -> tuple[Redaction, ...]:
    try:
        return parse_rules(value)
    except BadRequest as error:
        raise SettingsError(error.message, param=error.param) from error


def _master_keys(text: object) -> MasterKeys | None:
    return None if text is None else MasterKeys.parsed(str(text), "HONE_ENCRYPTION_KEY")


def _policies(value: object) -> list[dict[str, Any]]:
    """`[[policies]]` tables, or the short form `solver=MODEL,checker=MODEL`."""
    if not isinstance(value, str):
        return list(cast("Iterable[dict[str, Any]]", value))
    pairs = [item.partition("=") for item in value.split(",") if item.strip()]
    for name, equals, model in pairs:
        if not equals or not name.strip() or not model.strip():
            raise SettingsError(f"HONE_POLICIES: write NAME=MODEL,NAME=MODEL instead of {value!r}.")
    return [{"name": name.strip(), "model": model.strip()} for name, _, model in pairs]


def _runs(value: object) -> Iterable[RunSettings]:
    if not isinstance(value, list | tuple):
        raise SettingsError("runs: write [[runs]] tables in hone.toml.")
    for fields in cast("Sequence[Mapping[str, Any]]", value):
        try:
            yield parse_run(fields)
        except BadRequest as error:
            raise SettingsError(f"runs: {error.message}", param=error.param) from error


def _credit(value: object) -> object:
    """A credit is a table, or the bare kind."""
    if isinstance(value, str):
        return {"kind": value}
    _refuse_unknown("credit", value, Credit)
    return value


def _refuse_unknown(setting: str, value: object, record: type[Record]) -> None:
    """A field that nobody defined is refused also inside a table."""
    if isinstance(value, dict):
        for name in cast("dict[str, Any]", value):
            if name not in record.__struct_fields__:
                known = ", ".join(record.__struct_fields__)
                raise BadRequest(f"A {setting} has no field {name!r}; it has {known}.", param=setting)


def _check_run(run: RunSettings) -> None:
    """The ranges and choices that the record's types do not hold."""
    if not re.fullmatch(ID_PATTERN, run.run):
        raise BadRequest(f"A run's name matches {ID_PATTERN}.", param="run")
    for name, choices in RUN_CHOICES.items():
        _check_choice(name, getattr(run, name), choices)
    _check_choice("credit", run.credit.kind, CREDIT_KINDS)
    for role, rule in run.roles.items():
        _check_choice(f"roles.{role}", rule, ROLE_RULES)
    for name, (least, most) in RUN_RANGES.items():
        if not least <= getattr(run, name) <= most:
            raise BadRequest(f"{name} must be a number from {least:g} to {most:g}.", param=name)
    _check_weights(run)
    _check_retention(run.retention)
    if run.run == DEFAULT and run.mode != "train":
        raise BadRequest("The run `default` always trains; give an eval run another name.", param="mode")


def _check_retention(retention: Retention) -> None:
    for name in Retention.__struct_fields__:
        days = getattr(retention, name)
        if days is not None and not 0 <= days <= MAX_DAYS:
            told = f"retention.{name} is a number of days from 0 to {MAX_DAYS:g}, or null to keep it for ever."
            raise BadRequest(told, param=f"retention.{name}")


def _check_weights(run: RunSettings) -> None:
    """Weights that a reward is multiplied with must leave it finite."""
    weights = {f"reward_weights.{name}": weight for name, weight in run.reward_weights.items()}
    weights |= {"credit.own": run.credit.own, "credit.episode": run.credit.episode}
    for name, weight in weights.items():
        if not abs(weight) <= MAX_WEIGHT:
            raise BadRequest(f"{name} must be a number from {-MAX_WEIGHT:g} to {MAX_WEIGHT:g}.", param=name)
    for family, weight in run.families.items():
        _check_family(family, weight)
    if not 0 <= run.credit.gamma <= 1:
        raise BadRequest("credit.gamma must be a number from 0 to 1.", param="credit.gamma")


def _check_family(family: str, weight: float) -> None:
    param = f"families.{family}"
    if not family.strip("/") or family != family.strip("/") or len(family) > MAX_FAMILY_CHARS:
        raise BadRequest(
            f"A family is what the names of its tasks begin with, without the '/' after it, such as 'maths'; at most "
            f"{MAX_FAMILY_CHARS} characters, not {family[:MAX_FAMILY_CHARS]!r}.",
            param=param,
        )
    if not LEAST_SHARE <= weight <= MAX_WEIGHT:
        raise BadRequest(f"{param} must be a number from {LEAST_SHARE:g} to {MAX_WEIGHT:g}.", param=param)


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise BadRequest(f"{name} is one of {', '.join(choices)}, not {value!r}.", param=name)


def _refuse_repeats(setting: str, names: Sequence[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{setting}: {', '.join(repeated)} stands there twice; give each its own name")


def _param_of(message: str) -> str | None:
    """The field that a msgspec message points at (`… - at `$.group_size``)."""
    found = re.search(r"\$\.([A-Za-z_]+)", message)
    return found.group(1) if found else None
