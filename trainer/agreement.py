"""Whether the engines are the trainer's kind, asked of the gateway once, before anything is trained.

The rule: nothing is trained on an engine that reads or scores otherwise than this process, unless the settings say to
go on knowingly (`parity = "warn"`). A gateway or an engine that is not up yet is waited for; one engine of several only
for a while. What was not checked is said, whatever the settings are. What is compared is made in `parity.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, cast

import httpx
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tracker.errors import SettingsError, words_of
from trainer.config import TrainerSettings
from trainer.parity import expected_of

ASK_TIMEOUT_S: Final = 600.0
WAIT_S: Final = 1.0
TELL_S: Final = 15.0
"""Between two words about what is waited for."""
STRAGGLER_S: Final = 20.0
"""How long the engines that are away are waited for, where another one is up."""
PASSING: Final = frozenset({429, 500, 502, 503, 504})
DIFFERS: Final = 409
Json = dict[str, Any]


class Agreement:
    """Asks until there is an answer; `renew` is called while it waits, to keep the lease."""

    def __init__(
        self,
        settings: TrainerSettings,
        renew: Callable[[], None],
        say: Callable[[str], None],
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._settings = settings
        self._renew = renew
        self._say = say
        self._transport = transport
        self._is_checked = False
        self._told = ("", 0.0)

    def check(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """Compare the base model and its tokenizer with the engines; raises `SettingsError` if they differ.

        Only once: after a rollback the model is loaded again, and the engines are those of before.
        """
        if self._is_checked:
            return
        self._is_checked = True
        if self._settings.parity == "off":
            self._say('parity: not checked, since the settings say parity = "off"')
            return
        found = self._asked(expected_of(model, tokenizer, self._settings.parity_depth))
        if isinstance(found, str):
            self._differs(found)
            return
        for line in _lines(found):
            self._say(f"parity: {line}")

    def _asked(self, body: Json) -> list[Json] | str:
        """What was found at each engine, or the line that says what differs."""
        settings = self._settings
        headers = {} if settings.key is None else {"Authorization": f"Bearer {settings.key}"}
        started = time.monotonic()
        with httpx.Client(
            base_url=settings.gateway_url, headers=headers, timeout=ASK_TIMEOUT_S, transport=self._transport
        ) as http:
            while True:
                found = self._answer(http, body)
                if isinstance(found, str):
                    return found
                away = [str(engine["engine"]) for engine in found or () if not engine["is_up"]]
                if found and (not away or time.monotonic() - started >= STRAGGLER_S):
                    return found
                if found:
                    self._wait(f"the engine at {', '.join(away)} is not up yet")

    def _answer(self, http: httpx.Client, body: Json) -> list[Json] | str | None:
        """One request; `None` after a wait, if there was no answer yet."""
        try:
            answer = http.post(f"/v1/policies/{self._settings.policy.name}/parity", json=body)
        except httpx.TransportError as error:
            self._wait(f"the gateway at {self._settings.gateway_url} cannot be reached ({words_of(error)})")
            return None
        if answer.is_success:
            return cast("list[Json]", answer.json()["engines"])
        if answer.status_code == DIFFERS:
            return _message(answer)
        if answer.status_code not in PASSING:
            raise SettingsError(f"The gateway refused to compare the engines: {_message(answer)}")
        self._wait(_message(answer))
        return None

    def _wait(self, why: str) -> None:
        said, when = self._told
        now = time.monotonic()
        if why != said or now - when >= TELL_S:
            self._say(f"parity: {why}; asking again")
            self._told = (why, now)
        time.sleep(WAIT_S)
        self._renew()

    def _differs(self, line: str) -> None:
        if self._settings.parity == "refuse":
            raise SettingsError(f'{line} Nothing is trained on it; parity = "warn" goes on all the same.')
        self._say(f"parity: {line} Going on, since the settings say so.")


def _lines(found: list[Json]) -> list[str]:
    """One line for each engine, and what was not checked in it."""
    return [f"{engine['engine']}: {'; '.join(_told(check) for check in engine['checks'])}" for engine in found]


def _told(check: Json) -> str:
    if check["finding"] == "same":
        gap = "" if check["gap"] is None else f" ({check['gap']:.2g} nats)"
        return f"{check['what']} ok{gap}"
    finding = "not checked" if check["finding"] == "not_checked" else check["finding"]
    return f"{check['what']} {finding.upper()}: {check['detail']}"


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code} ({answer.text[:200]})"
