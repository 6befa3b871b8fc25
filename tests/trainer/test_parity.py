"""Start-up parity with real tiny models: what the trainer tells of itself against an embedded engine, over HTTP."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.fakes.gateways import RunningGateway, running_gateway
from tests.trainer.engine.conftest import KNOWN_WARNINGS, byte_tokenizer, running_engine, write_model
from tests.trainer.settings import settings_for
from tracker.errors import SettingsError
from tracker.types import Scope
from trainer.agreement import Agreement
from trainer.engine.config import EngineConfig
from trainer.parity import DEPTHS, expected_of

pytestmark = [pytest.mark.slow, *(pytest.mark.filterwarnings(line) for line in KNOWN_WARNINGS)]
Json = dict[str, Any]
DEPTH = 256


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("parity") / "tiny", "llama")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[str]:
    with running_engine(EngineConfig(model=str(folder), dtype="float32", max_model_len=512)) as url:
        yield url


@pytest.fixture
async def gateway(engine: str, folder: Path, tmp_path: Path, redis_url: str) -> AsyncIterator[RunningGateway]:
    env = {"HONE_REDIS_URL": redis_url, "HONE_POLICIES": f"solver={folder}"}
    async with running_gateway(engine, tmp_path, env) as running:
        yield running


def told(folder: Path, dtype: torch.dtype = torch.float32, change: Callable[[Any, Any], None] | None = None) -> Json:
    """What a trainer over this model says, after `change(model, tokenizer)`."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    if change is not None:
        change(model, tokenizer)
    return expected_of(model, tokenizer, DEPTH)


async def ask(gateway: RunningGateway, body: Json) -> httpx.Response:
    return await gateway.admin.post("/v1/policies/solver/parity", json=body, timeout=60)


async def test_the_same_model_passes_with_a_figure_for_each_check(gateway: RunningGateway, folder: Path) -> None:
    body = told(folder)
    assert {len(point["prompt_ids"]) for point in body["points"]} - {len(c["token_ids"]) for c in body["chats"]}
    answer = await ask(gateway, body)
    assert answer.status_code == 200, answer.text
    (found,) = answer.json()["engines"]
    assert found["is_up"]
    checks = {check["what"]: check for check in found["checks"]}
    assert {what: check["finding"] for what, check in checks.items()} == dict.fromkeys(
        ("tokenizer", "chat template", "base weights", "positions (rope)", "dtype"), "same"
    )
    assert checks["positions (rope)"]["gap"] < 1e-3


def other_tokenizer(_: Any, tokenizer: Any) -> None:
    """Two bytes change places."""
    encode = type(tokenizer).__call__

    class Swapped(type(tokenizer)):
        def __call__(self, *given: Any, **more: Any) -> Any:
            found = encode(self, *given, **more)
            names = {68: 69, 69: 68}
            return {"input_ids": [names.get(token, token) for token in found["input_ids"]]}

    tokenizer.__class__ = Swapped


def other_template(_: Any, tokenizer: Any) -> None:
    tokenizer.chat_template = tokenizer.chat_template.replace("<|im_end|>\n{% endfor %}", "<|im_end|>{% endfor %}")


def other_tools(_: Any, tokenizer: Any) -> None:
    tokenizer.chat_template = tokenizer.chat_template.replace("{{ tool | tojson }}", "{{ tool.function | tojson }}")


def other_weights(model: Any, _: Any) -> None:
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 0.1 * torch.randn_like(parameter))


def other_rope(model: Any, _: Any) -> None:
    """Half the speed, as a base four times as large gives at mid frequencies."""
    model.model.rotary_emb.inv_freq.mul_(0.5)


@pytest.mark.parametrize(
    ("change", "names", "words"),
    [
        (other_tokenizer, "tokenizer", "for the trainer and"),
        (other_template, "chat template", "'\\n'"),
        (other_tools, "chat template", "the chat of a tool"),
        (other_weights, "base weights", "nats apart"),
        (other_rope, "", "nats apart after a prompt of"),
    ],
)
async def test_what_differs_is_named_in_one_line(
    gateway: RunningGateway, folder: Path, change: Callable[[Any, Any], None], names: str, words: str
) -> None:
    answer = await ask(gateway, told(folder, change=change))
    assert answer.status_code == 409, answer.text
    error = answer.json()["error"]
    assert error["code"] == "parity"
    assert f"differs from the trainer in its {names}" in error["message"]
    assert words in error["message"]
    assert gateway.settings.engines[0] in error["message"]
    assert "\n" not in error["message"]


async def test_another_rope_shows_where_the_prompt_is_long(gateway: RunningGateway, folder: Path) -> None:
    """A change so slow that short prompts agree."""

    def slow_rope(model: Any, _: Any) -> None:
        with torch.no_grad():
            model.model.rotary_emb.inv_freq.mul_(1.0025)

    answer = await ask(gateway, told(folder, change=slow_rope))
    message = answer.json()["error"]["message"]
    assert "differs from the trainer in its positions (rope)" in message
    assert "though it agrees up to" in message


async def test_bfloat16_against_float32_passes_and_is_told(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, redis_url: str
) -> None:
    folder = tmp_path_factory.mktemp("coarse") / "tiny"
    write_model(folder, "llama")
    calmer(folder)
    with running_engine(EngineConfig(model=str(folder), dtype="bfloat16", max_model_len=512)) as url:
        env = {"HONE_REDIS_URL": redis_url, "HONE_POLICIES": f"solver={folder}"}
        async with running_gateway(url, tmp_path, env) as gateway:
            fine, coarse = [await ask(gateway, told(folder, dtype)) for dtype in (torch.float32, torch.bfloat16)]
    findings = []
    for answer in (fine, coarse):
        assert answer.status_code == 200, answer.text
        checks = {check["what"]: check for check in answer.json()["engines"][0]["checks"]}
        assert checks["base weights"]["finding"] == checks["positions (rope)"]["finding"] == "same"
        findings.append(checks["dtype"]["finding"])
    assert findings == ["coarse", "same"]


def calmer(folder: Path) -> None:
    """Weights a fourth as large: random ones as they are amplify rounding more than trained ones do."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(0.25)
    shutil.rmtree(folder)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)


async def test_what_the_engine_has_no_room_for_is_said_as_not_checked(
    folder: Path, tmp_path: Path, redis_url: str
) -> None:
    with running_engine(EngineConfig(model=str(folder), dtype="float32", max_model_len=48)) as url:
        env = {"HONE_REDIS_URL": redis_url, "HONE_POLICIES": f"solver={folder}"}
        async with running_gateway(url, tmp_path, env) as gateway:
            answer = await ask(gateway, told(folder))
    checks = {check["what"]: check["finding"] for check in answer.json()["engines"][0]["checks"]}
    assert checks["base weights"] == "same"
    assert checks["positions (rope)"] == "not_checked"


async def test_only_a_trainer_may_ask_and_only_for_a_policy(gateway: RunningGateway) -> None:
    body = {"dtype": "float32", "noise": 0.0}
    async with await gateway.client(Scope.AGENT) as agent:
        assert (await agent.post("/v1/policies/solver/parity", json=body)).status_code == 403
    assert (await gateway.admin.post("/v1/policies/none/parity", json=body)).status_code == 404
    assert (await ask(gateway, {**body, "noise": -1})).status_code == 400
    point = {"prompt_ids": [1], "token_ids": [1, 2], "logprobs": [-1.0]}
    assert (await ask(gateway, {**body, "points": [point]})).status_code == 400


# The trainer's side, before a gateway that is a transport.


class Answers:
    """A gateway's answers, one after the other; the last one stays."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.bodies: list[bytes] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(request.content)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, content=answer.content)


def found(*, is_up: bool = True, finding: str = "same") -> httpx.Response:
    checks = [{"what": "tokenizer", "finding": finding, "detail": "some words", "gap": None}]
    engines = [{"engine": "http://e", "model": "m", "is_up": is_up, "checks": checks}]
    return httpx.Response(200, json={"policy": "solver", "engines": engines})


def refused(status: int, message: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": message, "type": "t", "param": None, "code": "parity"}})


def agreed(tmp_path: Path, folder: Path, gateway: Answers, **fields: Any) -> tuple[list[str], int]:
    """What was said, and how often the lease was renewed."""
    said: list[str] = []
    renewed: list[int] = []
    settings = settings_for(tmp_path, parity_depth=16, **fields)
    agreement = Agreement(settings, lambda: renewed.append(1), said.append, httpx.MockTransport(gateway))
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    for _ in range(2):
        agreement.check(model, AutoTokenizer.from_pretrained(folder))
    return said, len(renewed)


def test_the_trainer_does_not_start_on_an_engine_that_differs(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(SettingsError, match="in its tokenizer") as caught:
        agreed(tmp_path, folder, Answers(refused(409, "The engine at http://e differs in its tokenizer.")))
    assert 'parity = "warn"' in caught.value.message


def test_the_trainer_may_go_on_knowingly(tmp_path: Path, folder: Path) -> None:
    gateway = Answers(refused(409, "The engine at http://e differs in its tokenizer."))
    said, _ = agreed(tmp_path, folder, gateway, parity="warn")
    assert ["in its tokenizer" in line for line in said] == [True]
    assert len(gateway.bodies) == 1


def test_a_gateway_and_an_engine_that_are_not_up_yet_are_waited_for(tmp_path: Path, folder: Path) -> None:
    gateway = Answers(httpx.ConnectError("refused"), refused(503, "No engine is up yet."), found())
    said, num_renewed = agreed(tmp_path, folder, gateway)
    assert ["cannot be reached" in said[0], "No engine is up" in said[1], said[-1]] == [
        True,
        True,
        "parity: http://e: tokenizer ok",
    ]
    assert num_renewed == 2


def test_what_was_not_checked_is_said(tmp_path: Path, folder: Path) -> None:
    said, _ = agreed(tmp_path, folder, Answers(found(finding="not_checked")))
    assert said == ["parity: http://e: tokenizer NOT CHECKED: some words"]
    said, _ = agreed(tmp_path, folder, Answers(found()), parity="off")
    assert ["not checked" in line for line in said] == [True]


def test_a_gateway_that_knows_no_such_policy_ends_the_start(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(SettingsError, match="no policy"):
        agreed(tmp_path, folder, Answers(refused(404, "There is no policy 'solver'.")))


def test_prompts_end_near_each_depth(folder: Path) -> None:
    lengths = sorted(len(point["prompt_ids"]) for point in told(folder)["points"])
    depths = [depth for depth in DEPTHS if depth <= DEPTH]
    assert all(any(depth - 8 < length <= depth for length in lengths) for depth in depths)
