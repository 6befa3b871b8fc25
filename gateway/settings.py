"""The gateway's settings: where it listens, which engines it stands before, and its limits.

One frozen tree a process, from `HONE_X` variables and `hone.toml` (see `tracker/settings.py`, which owns the part that
all processes share). A name in the file that nobody knows is refused: a typing error never becomes a silent default.
"""

from __future__ import annotations

import difflib
import enum
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from gateway.addresses import network_of
from gateway.identity import HOW_TO_NAME, is_session_field
from gateway.logs import LogFormat
from gateway.upstream_settings import UpstreamSettings, upstreams_of
from tracker.errors import SettingsError
from tracker.settings import PREFIX, Settings, StoreSettings, read_settings, stores_of, validated

OTHER_TABLES: Final = frozenset({"trainer", "engine", "vllm", "local"})
"""Tables of `hone.toml` that other processes read."""
DEFAULT_ENGINE: Final = "http://127.0.0.1:8610"
"""Where `hone engine` listens unless told otherwise."""
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


EXPOSED: Final = (
    "it listens on {host} without TLS: keys and conversations can be read on the way. Name a certificate "
    "(HONE_TLS_CERT, HONE_TLS_KEY); behind a proxy that does, say so (HONE_TRUSTED_PROXIES or HONE_BEHIND_PROXY=true)"
)
"""Told, not refused: inside a cluster or a container the network itself may be the wall, and only its owner knows."""


class LocalEngine(enum.StrEnum):
    """Which engine `hone up` starts."""

    EMBEDDED = "embedded"
    VLLM = "vllm"


class GatewaySettings(Settings):
    """Everything the gateway is told."""

    stores: StoreSettings
    host: str = "127.0.0.1"
    port: int = Field(default=8600, ge=0, le=65535)
    public_url: str = ""
    """What agents' base URLs are built from; by default the address it listens on. Never the Host header."""
    engines: tuple[str, ...] = (DEFAULT_ENGINE,)
    """Root URLs of engines, without `/v1`."""
    engine_key: str | None = None
    local_engine: LocalEngine = LocalEngine.EMBEDDED
    """What `hone up` starts where no engines are named."""
    vllm_python: str | None = None
    """A Python that has vLLM; looked for where it usually is by default."""
    vllm_command: str | tuple[str, ...] | None = None
    """The whole of what starts vLLM's server, without flags, where that is no Python module."""
    workers: int = Field(default=1, ge=1, le=64)
    max_body_bytes: int = Field(default=32 * 2**20, ge=1024)
    max_header_bytes: int = Field(default=64 * 1024, ge=1024)
    """Names and values of a request's headers together."""
    max_headers: int = Field(default=200, ge=16)
    max_connections: int = Field(default=8192, ge=1)
    """Of each worker; a request on one more is answered with 503."""
    max_adapter_bytes: int = Field(default=8 * 2**30, ge=1024)
    """Of the weights of one published version."""
    max_choices: int = Field(default=8, ge=1)
    """The cap of `n`."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    """Cap of an answer's length; `None` leaves it to the engine."""
    body_timeout_s: float = Field(default=30.0, gt=0)
    """How long a client may take to send its body."""
    header_timeout_s: float = Field(default=20.0, gt=0)
    """How long a client may take to send the head of a request, or to begin with its first."""
    write_timeout_s: float = Field(default=60.0, gt=0)
    """How long a client may take nothing of what waits for it before it is cut off."""
    stream_idle_s: float = Field(default=120.0, gt=0)
    """How long an engine may send nothing in the middle of a stream before the call has failed."""
    episode_from: tuple[str, ...] = ()
    """Where calls that name no episode say which session they belong to: `header:NAME` or `body:FIELD.FIELD`, the first
    that a call has; `header:ONE|OTHER` is one field. Calls of one session under one key and task are one episode."""
    begin_timeout_s: float = Field(default=0.09, gt=0)
    """How long a new call waits for Redis before it is refused; more where its disk is slow."""
    call_timeout_s: float = Field(default=600.0, gt=0)
    """A call without an end by then is lost."""
    record_timeout_s: float = Field(default=10.0, gt=0)
    """How long a held event waits for its record."""
    sweep_interval_s: float = Field(default=0.5, gt=0)
    poll_interval_s: float = Field(default=2.0, gt=0)
    """Between two looks at each engine."""
    engine_timeout_s: float = Field(default=60.0, gt=0)
    """For control calls: loading an adapter, scoring a probe."""
    access_log: bool = True
    """One line a request: method, path and status."""
    log_format: LogFormat = LogFormat.TEXT
    """`json`: one object a line."""
    otlp_endpoint: str | None = None
    """Root URL of a collector of OpenTelemetry, for one span a call; none are made without it."""
    metrics_dir: Path | None = None
    """Where workers keep what they count together; the gateway sets it itself where it has several."""
    shutdown_s: int = Field(default=15, ge=0)
    """How long calls in flight may go on once the gateway is told to stop."""
    tls_cert: Path | None = None
    """A file with the certificate and what leads up to its root, in PEM; with it the gateway speaks HTTPS alone."""
    tls_key: Path | None = None
    """A file with the certificate's private key, in PEM, without a pass phrase."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or CIDR blocks whose `X-Forwarded-For` is believed: in the access log, and in what is counted by
    address."""
    behind_proxy: bool = False
    """Whoever reaches the gateway has come through something that speaks TLS: nobody is warned that it does not."""

    upstreams: tuple[UpstreamSettings, ...] = ()
    """Servers of models that are no policy."""

    @field_validator("engines", "episode_from", "trusted_proxies", mode="before")
    @classmethod
    def _split_list(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(part.strip() for part in value.split(",") if part.strip())

    @field_validator("engines")
    @classmethod
    def _engines_are_roots(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        if not urls:
            raise ValueError("name at least one engine, as http://HOST:PORT")
        return tuple(dict.fromkeys(_root_url(url) for url in urls))

    @field_validator("otlp_endpoint")
    @classmethod
    def _collector_is_http(cls, url: str | None) -> str | None:
        return _root_url(url.removesuffix("/v1/traces")) if url else None

    @field_validator("episode_from")
    @classmethod
    def _episode_from_names_fields(cls, fields: tuple[str, ...]) -> tuple[str, ...]:
        for field in fields:
            if not is_session_field(field):
                raise ValueError(f"{HOW_TO_NAME} instead of {field!r}")
        return fields

    @field_validator("trusted_proxies")
    @classmethod
    def _proxies_are_networks(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            try:
                network_of(name)
            except ValueError:
                raise ValueError(f"write an address or a block such as 10.0.0.0/8 instead of {name!r}") from None
        return names

    @field_validator("public_url")
    @classmethod
    def _public_url_is_a_root(cls, url: str) -> str:
        return _root_url(url) if url else url

    @model_validator(mode="after")
    def _models_are_told_apart(self) -> GatewaySettings:
        names = [upstream.name for upstream in self.upstreams]
        own = {name for policy in self.stores.policies for name in (policy.name, *policy.aliases)}
        models = [model for upstream in self.upstreams for model in upstream.models]
        for what, repeated in (("the name", _repeated(names)), ("the model", _repeated([*models, *own]))):
            if repeated:
                raise ValueError(f"upstreams: {what} {', '.join(repeated)} stands there twice; give each its own")
        return self

    @model_validator(mode="after")
    def _certificate_can_be_used(self) -> GatewaySettings:
        if self.tls_cert is None and self.tls_key is None:
            return self
        if self.tls_cert is None or self.tls_key is None:
            raise ValueError("HONE_TLS_CERT and HONE_TLS_KEY belong together: name both files, or none")
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls_cert, self.tls_key, _no_pass_phrase)
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            told = error.strerror or error if isinstance(error, OSError) else error
            raise ValueError(f"HONE_TLS_CERT and HONE_TLS_KEY: {self.tls_cert}, {self.tls_key}: {told}") from error
        return self

    @property
    def base_url(self) -> str:
        """What agents are told, without `/v1`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.public_url or f"{'http' if self.tls_cert is None else 'https'}://{host}:{self.port}"

    @property
    def is_exposed(self) -> bool:
        """Whether keys and conversations cross a network in the clear, as far as the settings tell."""
        return not (self.is_loopback or self.tls_cert or self.behind_proxy or self.trusted_proxies)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the gateway."""
        return self.host in LOOPBACK or self.host.startswith("127.")


def load(env: Mapping[str, str], cwd: Path) -> GatewaySettings:
    """Read and check everything; raises `SettingsError` naming what is wrong and what would work."""
    settings = load_for_asking(env, cwd)
    if not settings.stores.policies:
        raise SettingsError('HONE_POLICIES: name at least one policy, as "solver=MODEL", or [[policies]] in hone.toml.')
    return settings


def load_for_asking(env: Mapping[str, str], cwd: Path) -> GatewaySettings:
    """The same for who asks a gateway and serves nothing: its policies need not be named here."""
    tree = read_settings(env, cwd)
    own = set(GatewaySettings.model_fields) - {"stores"}
    _refuse_unknown_names(tree, own | set(StoreSettings.model_fields) | OTHER_TABLES, env)
    fields: dict[str, Any] = {name: value for name, value in tree.items() if name in own}
    if "upstreams" in fields:
        fields["upstreams"] = upstreams_of(fields["upstreams"], env)
    return validated(GatewaySettings, {**fields, "stores": stores_of(tree, cwd)})


def _refuse_unknown_names(tree: Mapping[str, Any], known: set[str], env: Mapping[str, str]) -> None:
    """Only names from the file: other programs may have variables that begin with `HONE_`."""
    for name in sorted(set(tree) - known):
        if f"{PREFIX}{name.upper()}" not in env:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; it knows {', '.join(sorted(known))}."
            raise SettingsError(f"hone.toml: there is no setting {name!r}{hint}")


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def _no_pass_phrase() -> str:
    """Asked by `ssl` for a key that has one; without it, it would ask whoever sits at the terminal."""
    raise ValueError("the key has a pass phrase; give it without one, readable by the gateway alone")


def _root_url(url: str) -> str:
    """A URL with scheme and host, without a trailing slash or `/v1`. Keys have a place of their own."""
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise ValueError("leave user and password out of the URL; HONE_ENGINE_KEY is where an engine's key stands")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"write http://HOST:PORT instead of {url!r}")
    root = url.rstrip("/")
    if root.endswith("/v1"):
        raise ValueError(f"write the root URL {root.removesuffix('/v1')}, without /v1")
    return root
