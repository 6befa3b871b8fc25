"""Publishing a version: number, folder, registration, swap.

A number is reserved before anything is written and never used again. The folder `POLICY@N-DIGEST8` holds
`adapter_config.json` and `adapter_model.safetensors` and nothing else, is named in SQL with its digest, then written
aside and renamed, and only then the gateway is asked to serve it. Publishing again what was published before a crash
finds the same version by its digest and does what is left of it. Whether engines really serve it is for the gateway to
find out; what it answers is final.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import httpx
import msgspec
from torch import Tensor

from tracker.adapters import WEIGHTS_FILE
from tracker.errors import Conflict, SettingsError, words_of
from tracker.types import ProbePoint, Version, VersionState
from trainer.checkpoints import aside, clean
from trainer.config import TrainerSettings
from trainer.feed import Feed
from trainer.grpo import PolicyTrainer, read_weights
from trainer.parity import NOISE
from trainer.probe import probe_points
from trainer.steps import Step
from trainer.stopping import Stop, Stopped

CONFLICT: Final = 409
SWAP_TIMEOUT_S: Final = 600.0
FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 15.0
SWAP_ATTEMPTS: Final = 4
"""A swap that failed is asked for again this often: an engine may have been restarting."""
PASSING: Final = frozenset({429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a publication."""

    version: int | None
    """`None`: agents keep getting the version before."""
    detail: str = ""


class Publisher:
    """Turns the trainer's weights into versions that agents get."""

    def __init__(
        self,
        settings: TrainerSettings,
        feed: Feed,
        stop: Stop,
        say: Callable[[str], None],
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._settings = settings
        self._policy = settings.policy.name
        self._feed = feed
        self._stop = stop
        self._say = say
        self._transport = transport

    def clean(self) -> None:
        """Remove what a crash left half written."""
        clean(self._settings.stores.adapters_dir, f"{self._policy}@")

    def publish(self, trainer: PolicyTrainer, step: Step, metrics: dict[str, Any], noise: float | None) -> Published:
        """Publish the weights as they are now; waits for a gateway that is restarting, unless told to stop.

        Raises `Stopped` where no answer came: the next start publishes again.
        """
        previous = self._previous()
        points = probe_points(trainer, step.rows, None if previous is None else self._weights(previous))
        try:
            version = self._write(trainer, step, metrics)
        except Conflict as error:
            return Published(None, error.message)
        return self._register(version, metrics, points, noise)

    def _previous(self) -> Version | None:
        """The version agents get now, if its files are there; `None` is the base."""
        active = self._feed.policy().active
        found = next((version for version in self._feed.versions() if version.version == active), None)
        return found if found is not None and (self._folder(found) / WEIGHTS_FILE).is_file() else None

    def _weights(self, version: Version) -> dict[str, Tensor]:
        return read_weights(self._folder(version) / WEIGHTS_FILE)

    def _folder(self, version: Version) -> Path:
        return self._settings.stores.adapters_dir / version.folder

    def _write(self, trainer: PolicyTrainer, step: Step, metrics: dict[str, Any]) -> Version:
        """Reserve a number, name it and write its folder, as far as this was not done before a crash."""
        digest = hashlib.sha256(trainer.adapter_bytes()).hexdigest()
        version = self._named(digest, step.batch.epoch) or self._name(digest, step.batch.epoch, metrics)
        if not (self._folder(version) / WEIGHTS_FILE).is_file():
            with aside(self._folder(version)) as folder:
                trainer.write_adapter(folder)
        return version

    def _named(self, digest: str, epoch: int) -> Version | None:
        """The version that these weights were given before."""
        for known in self._feed.versions():
            is_same = known.folder and known.digest == digest and known.epoch == epoch
            if is_same and known.state is not VersionState.WITHDRAWN:
                return known
        return None

    def _name(self, digest: str, epoch: int, metrics: dict[str, Any]) -> Version:
        reserved = self._feed.reserve_version(epoch)
        version = msgspec.structs.replace(
            reserved,
            folder=f"{self._policy}@{reserved.version}-{digest[:8]}",
            digest=digest,
            metrics=msgspec.json.encode(metrics),
        )
        self._feed.put_version(version)
        return version

    def _register(
        self, version: Version, metrics: dict[str, Any], points: tuple[ProbePoint, ...], noise: float | None
    ) -> Published:
        """Ask the gateway to serve it, again and again while it cannot be reached."""
        body = {
            "folder": version.folder,
            "digest": version.digest,
            "epoch": version.epoch,
            "metrics": metrics,
            "probe": {"points": [msgspec.to_builtins(point) for point in points], "noise": self._noise(noise)},
        }
        wait_s, swaps_left = FIRST_WAIT_S, SWAP_ATTEMPTS
        while True:
            answer, problem = self._post(body)
            if answer is not None and answer.is_success:
                return Published(version.version, str(answer.json().get("detail", "")))
            if answer is not None and answer.status_code not in PASSING:
                swaps_left -= 1
                if _code(answer) != "swap_failed" or swaps_left == 0:
                    return self._refused(answer)
            self._say(f"version {version.version} is not published yet: {problem}; again in {wait_s:.0f} s")
            if self._stop.wait(wait_s):
                raise Stopped
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            self._feed.renew()

    def _post(self, body: dict[str, Any]) -> tuple[httpx.Response | None, str]:
        try:
            answer = self._feed.wait(self._asked(body))
        except httpx.TransportError as error:
            return (
                None,
                f"the gateway at {self._settings.gateway_url} cannot be reached ({words_of(error)})",
            )
        return answer, _message(answer)

    async def _asked(self, body: dict[str, Any]) -> httpx.Response:
        url, key = self._settings.gateway_url, self._settings.key
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(
            base_url=url, headers=headers, timeout=SWAP_TIMEOUT_S, transport=self._transport
        ) as http:
            return await http.post(f"/v1/policies/{self._policy}/versions", json=body)

    def _refused(self, answer: httpx.Response) -> Published:
        """A conflict is an answer (the swap failed, the epoch is over); anything else is a setting to be mended."""
        if answer.status_code == CONFLICT:
            return Published(None, _message(answer))
        raise SettingsError(f"The gateway refused a version ({answer.status_code}): {_message(answer)}")

    def _noise(self, measured: float | None) -> float:
        """What the step measured, else what this arithmetic is known for."""
        if measured is not None:
            return measured
        return NOISE.get(self._settings.dtype, NOISE["bfloat16"])


def timed(work: Callable[[], Published]) -> tuple[Published, float]:
    """The publication and how many seconds it took."""
    started = time.monotonic()
    published = work()
    return published, time.monotonic() - started


def _error(answer: httpx.Response) -> dict[str, Any]:
    try:
        found: Any = answer.json()
    except ValueError:
        return {}
    body = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    error = body.get("error")
    return cast("dict[str, Any]", error) if isinstance(error, dict) else {}


def _message(answer: httpx.Response) -> str:
    return str(_error(answer).get("message", f"status {answer.status_code}"))


def _code(answer: httpx.Response) -> str:
    return str(_error(answer).get("code", ""))
