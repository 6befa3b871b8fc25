"""Start-up parity against both real engines: a trainer over the same model passes, one over another does not."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.engines.stand import Gateway, Json, Stand
from trainer.parity import expected_of

pytestmark = pytest.mark.slow
DEPTH = 256


@pytest.fixture(scope="session")
def trainers(model_folder: str) -> dict[str, Json]:
    """What a trainer in float32 tells: of the same model, and of one with a smaller rope base."""
    model: Any = AutoModelForCausalLM.from_pretrained(model_folder, dtype="float32")
    tokenizer: Any = AutoTokenizer.from_pretrained(model_folder)
    told = {"same": expected_of(model, tokenizer, DEPTH)}
    tokenizer.chat_template = tokenizer.chat_template.replace("message['role']", "' ' + message['role']")
    told["template"] = {**told["same"], "chats": expected_of(model, tokenizer, 16)["chats"]}
    assert told["template"] != told["same"]
    config = copy.deepcopy(model.config)
    config.rope_parameters = {**config.rope_parameters, "rope_theta": 10_000.0}
    other: Any = AutoModelForCausalLM.from_pretrained(model_folder, config=config, dtype="float32")
    told["rope"] = expected_of(other, tokenizer, DEPTH)
    return {**told, "rope": {**told["same"], "points": told["rope"]["points"]}}


async def ask(gateway: Gateway, body: Json) -> Any:
    return await gateway.running.admin.post("/v1/policies/solver/parity", json=body, timeout=300)


async def test_a_trainer_over_the_same_model_passes(stand: Stand, gateway: Gateway, trainers: dict[str, Json]) -> None:
    answer = await ask(gateway, trainers["same"])
    assert answer.status_code == 200, answer.text
    (found,) = answer.json()["engines"]
    assert found["engine"] == stand.url
    checks = {check["what"]: check for check in found["checks"]}
    for what in ("tokenizer", "chat template", "base weights", "positions (rope)"):
        assert checks[what]["finding"] == "same", checks
    assert checks["dtype"]["finding"] in ("same", "coarse"), checks


@pytest.mark.parametrize(("kind", "words"), [("rope", "nats apart after a prompt of"), ("template", "chat template")])
async def test_a_trainer_over_another_model_is_refused(
    stand: Stand, gateway: Gateway, trainers: dict[str, Json], kind: str, words: str
) -> None:
    answer = await ask(gateway, trainers[kind])
    assert answer.status_code == 409, answer.text
    assert words in answer.json()["error"]["message"]
    assert stand.url in answer.json()["error"]["message"]
