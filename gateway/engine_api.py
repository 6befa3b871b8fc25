"""What the gateway asks of one engine beside calls: its models, adapters in and out, and scores.

The part of vLLM's API that both vLLM and the embedded engine serve, over httpx. An engine that does not answer, or
answers with what nobody can read, is `UpstreamFailed`; what follows from it is left to `engines.py` and `hotswap.py`.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx
import msgspec

from gateway.routing import knobs
from tracker.errors import UpstreamFailed, words_of
from tracker.types import Record, Sampling

NUM_TOP: Final = 20
"""Alternatives asked for with each score: the most that vLLM gives by default."""
NOT_SERVED: Final = frozenset({404, 405, 501})
FORBIDDEN: Final = 403
"""What vLLM answers on routes that it was started without."""
LOOK_TIMEOUT_S: Final = 5.0
"""For the list of models, which an engine that is not stuck gives at once."""
SILENT: Final = "engine_silent"
"""The code of an `UpstreamFailed` that is a lack of any answer in time."""


class ModelCard(Record, frozen=True):
    """One entry of `GET /v1/models`: a base has no parent; an adapter's root is the path it was loaded from."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None
    """The most tokens of prompt and answer."""


class _ModelList(msgspec.Struct):
    data: list[ModelCard] = msgspec.field(default_factory=list[ModelCard])


class _Alternative(msgspec.Struct):
    token: str
    logprob: float


class _ChatToken(msgspec.Struct):
    top_logprobs: list[_Alternative] | None = None


class _Logprobs(msgspec.Struct):
    top_logprobs: list[dict[str, float] | None] | None = None
    content: list[_ChatToken] | None = None


class _Choice(msgspec.Struct):
    logprobs: _Logprobs | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice] = msgspec.field(default_factory=list[_Choice])


class Said(msgspec.Struct, frozen=True):
    """What a model sampled after a prompt."""

    ids: tuple[int, ...] = msgspec.field(name="token_ids", default=())
    finish_reason: str | None = None


class _SaidChoices(msgspec.Struct):
    choices: list[Said]


class _Counted(msgspec.Struct):
    count: int
    tokens: tuple[int, ...] = ()


class _Worded(msgspec.Struct):
    prompt: str


class _Told(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Told


def engine_http(timeout_s: float) -> httpx.AsyncClient:
    """A client for engines: no proxy of the environment, and the roots that calls trust as well (the system's, or those
    of `SSL_CERT_FILE`), where httpx of itself would take only its own."""
    return httpx.AsyncClient(timeout=timeout_s, trust_env=False, verify=ssl.create_default_context())


class EngineApi:
    """Control calls to engines, each by its root URL."""

    def __init__(self, http: httpx.AsyncClient, key: str | None) -> None:
        self._http = http
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    async def list_models(self, url: str) -> tuple[ModelCard, ...]:
        """All names the engine answers to. An engine without this list (404) has none that we could check."""
        response = await self._send(url, "GET", "/v1/models", None, timeout_s=LOOK_TIMEOUT_S)
        if response.status_code in NOT_SERVED:
            return ()
        _refuse_failure(url, response)
        try:
            return tuple(msgspec.json.decode(response.content, type=_ModelList).data)
        except msgspec.MsgspecError as error:
            raise UpstreamFailed(f"{url}/v1/models answered no list of models: {error}") from error

    async def load(self, url: str, name: str, path: str) -> str:
        """Ask for an adapter under a name; the answer's text. Only the list of models tells whether it is there."""
        body = {"lora_name": name, "lora_path": path}
        return (await self._send(url, "POST", "/v1/load_lora_adapter", body)).text[:500]

    async def unload(self, url: str, name: str) -> None:
        """Drop an adapter; one that is not there is as good as dropped."""
        response = await self._send(url, "POST", "/v1/unload_lora_adapter", {"lora_name": name})
        if response.status_code not in (400, 404):
            _refuse_failure(url, response)

    async def score(self, url: str, model: str, prompt: str | Sequence[int], temperature: float) -> Mapping[str, float]:
        """Log-probabilities of the likeliest next tokens at a temperature, by token (`token_id:N` where it can).

        Empty where the engine gives none. A text is also asked for as a chat, for engines that serve nothing else.
        """
        body: dict[str, Any] = {"model": model, "max_tokens": 1, "temperature": temperature, "seed": 1}
        body |= {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "return_tokens_as_token_ids": True}
        given = prompt if isinstance(prompt, str) else list(prompt)
        plain = await self._send(url, "POST", "/v1/completions", {**body, "prompt": given, "logprobs": NUM_TOP})
        if plain.status_code not in NOT_SERVED or not isinstance(prompt, str):
            _refuse_failure(url, plain)
            return _first_token(url, plain)
        messages = [{"role": "user", "content": prompt}]
        asked = {**body, "messages": messages, "logprobs": True, "top_logprobs": NUM_TOP}
        chat = await self._send(url, "POST", "/v1/chat/completions", asked)
        _refuse_failure(url, chat)
        return _first_token(url, chat)

    async def go_on(self, url: str, model: str, prompt: Sequence[int], sampling: Sampling, limit: int) -> Said:
        """Sample an answer to a prompt of ids, as it would be for an agent."""
        body: dict[str, Any] = {"model": model, "prompt": list(prompt), "max_tokens": limit, "return_token_ids": True}
        response = await self._send(url, "POST", "/v1/completions", body | knobs(sampling))
        _refuse_failure(url, response)
        try:
            choices = msgspec.json.decode(response.content, type=_SaidChoices).choices
        except msgspec.MsgspecError as error:
            raise UpstreamFailed(f"The engine at {url} answered no completion: {error}") from error
        if not choices:
            raise UpstreamFailed(f"The engine at {url} answered a completion without choices.")
        return choices[0]

    async def count_tokens(self, url: str, body: Mapping[str, object]) -> int:
        """The number of tokens of a chat as the engine renders it; what it refuses is told with its own status."""
        return (await self._tokenized(url, body)).count

    async def tokenize(self, url: str, body: Mapping[str, object]) -> tuple[int, ...]:
        """The ids of a chat (`messages`) or of a text (`prompt`); what it refuses is told with its own status."""
        answer = await self._tokenized(url, body)
        if len(answer.tokens) != answer.count:
            raise UpstreamFailed(f"The engine at {url} counts tokens and does not say which they are.")
        return answer.tokens

    async def piece(self, url: str, model: str, token_id: int) -> str:
        """The text of one id, for people."""
        return await self.detokenize(url, model, [token_id])

    async def detokenize(self, url: str, model: str, ids: Sequence[int]) -> str:
        """The text of ids, for people."""
        response = await self._send(url, "POST", "/detokenize", {"model": model, "tokens": list(ids)})
        _refuse_failure(url, response)
        try:
            return msgspec.json.decode(response.content, type=_Worded).prompt
        except msgspec.MsgspecError as error:
            raise UpstreamFailed(f"The engine at {url} gave no text of a token: {error}") from error

    async def _tokenized(self, url: str, body: Mapping[str, object]) -> _Counted:
        response = await self._send(url, "POST", "/tokenize", body)
        if response.status_code in NOT_SERVED:
            raise UpstreamFailed("The engine counts no tokens: it has no /tokenize.", status=404, code="not_served")
        if 400 <= response.status_code < 500:
            raise UpstreamFailed(_words_of(response), status=response.status_code)
        _refuse_failure(url, response)
        try:
            return msgspec.json.decode(response.content, type=_Counted)
        except msgspec.MsgspecError as error:
            raise UpstreamFailed(f"The engine at {url} answered no count of tokens: {error}") from error

    async def serves(self, url: str, path: str) -> bool:
        """Whether the engine has a route: one that it has refuses an empty request otherwise than one it has not."""
        response = await self._send(url, "POST", path, {}, timeout_s=LOOK_TIMEOUT_S)
        return response.status_code not in NOT_SERVED | {FORBIDDEN}

    async def _send(
        self, url: str, method: str, path: str, body: object, *, timeout_s: float | None = None
    ) -> httpx.Response:
        timeout = httpx.USE_CLIENT_DEFAULT if timeout_s is None else httpx.Timeout(timeout_s)
        try:
            return await self._http.request(method, f"{url}{path}", json=body, headers=self._headers, timeout=timeout)
        except httpx.TimeoutException as error:
            raise UpstreamFailed(f"The engine at {url} does not answer in time.", code=SILENT) from error
        except httpx.HTTPError as error:
            raise UpstreamFailed(f"The engine at {url} does not answer: {words_of(error)}.") from error


def _refuse_failure(url: str, response: httpx.Response) -> None:
    if response.status_code >= 300:
        raise UpstreamFailed(f"The engine at {url} answered {response.status_code}: {response.text[:300]}")


def _words_of(response: httpx.Response) -> str:
    """What an engine says of a request that it refuses."""
    try:
        return msgspec.json.decode(response.content, type=_Refusal).error.message
    except msgspec.MsgspecError:
        return f"The engine answered {response.status_code}: {response.text[:300]}"


def _first_token(url: str, response: httpx.Response) -> dict[str, float]:
    """The alternatives of the first token of an answer, in the form of either endpoint."""
    try:
        answer = msgspec.json.decode(response.content, type=_Answer)
    except msgspec.MsgspecError as error:
        raise UpstreamFailed(f"The engine at {url} answered no completion: {error}") from error
    logprobs = answer.choices[0].logprobs if answer.choices else None
    if logprobs is None:
        return {}
    if logprobs.top_logprobs:
        return logprobs.top_logprobs[0] or {}
    first = logprobs.content[:1] if logprobs.content else []
    return {entry.token: entry.logprob for token in first for entry in token.top_logprobs or ()}
