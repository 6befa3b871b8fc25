"""Versions: adapters come and go on a running engine, each answering as itself."""

import json
import shutil
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.trainer.engine.test_app import chat, completion, is_idle, load, stream, unload, wait_for

pytestmark = pytest.mark.slow

Start = Callable[..., AbstractContextManager[str]]
LONG = list(range(60, 200))
EXACT = {"temperature": 0, "logprobs": 0, "return_token_ids": True, "ignore_eos": True, "max_tokens": 12}


def answer(url: str, model: str, **fields: Any) -> dict[str, Any]:
    return completion(url, prompt=LONG, model=model, **{**EXACT, **fields})["choices"][0]


def names(url: str) -> list[str]:
    return [model["id"] for model in httpx.get(url + "/v1/models", timeout=60).json()["data"]]


def assert_served_by(choice: dict[str, Any], model_folder: Path, adapter: Path | None) -> None:
    """Check the log-probabilities of an answer against a plain full forward under the adapter."""
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter)
    ids, sampled = choice["prompt_token_ids"], choice["token_ids"]
    with torch.inference_mode():
        rows = torch.log_softmax(model.eval()(input_ids=torch.tensor([ids + sampled])).logits[0], -1)
    expected = rows[len(ids) - 1 : -1].gather(1, torch.tensor(sampled)[:, None])[:, 0].tolist()
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected, abs=1e-4)


def test_versions_are_served_side_by_side_and_the_base_stays_as_it_was(
    start_engine: Start, model_folder: Path, adapter_1: Path, adapter_2: Path
) -> None:
    with start_engine() as url:
        before = answer(url, "tiny")
        assert load(url, "p@1", adapter_1).text == "Success: LoRA adapter 'p@1' added successfully."
        assert load(url, "p@2", adapter_2).status_code == 200
        assert names(url) == ["tiny", "p@1", "p@2"]
        card = httpx.get(url + "/v1/models", timeout=60).json()["data"][1]
        assert (card["root"], card["parent"]) == (str(adapter_1), "tiny")
        for _ in range(2):
            assert answer(url, "tiny") == before
            assert_served_by(answer(url, "p@1", temperature=1), model_folder, adapter_1)
            assert_served_by(answer(url, "p@2", temperature=1), model_folder, adapter_2)
        assert_served_by(before, model_folder, None)
        assert answer(url, "p@1")["token_ids"] != answer(url, "p@2")["token_ids"]


def test_a_version_loaded_later_reads_no_block_of_an_earlier_one(
    start_engine: Start, adapter_1: Path, adapter_2: Path
) -> None:
    with start_engine() as url:
        load(url, "v2", adapter_2)
        fresh = answer(url, "v2")
    with start_engine() as url:
        load(url, "v1", adapter_1)
        old = answer(url, "v1")
        load(url, "v2", adapter_2)
        assert answer(url, "v2") == fresh
        assert answer(url, "v1") == old
        # The same name again, after an unload, is a new version too.
        assert unload(url, "v1").status_code == 200
        load(url, "v1", adapter_2)
        assert answer(url, "v1") == fresh


def test_a_long_stream_keeps_its_version_while_others_are_loaded_and_asked(
    start_engine: Start, model_folder: Path, adapter_1: Path, adapter_2: Path
) -> None:
    with start_engine() as url:
        load(url, "p@1", adapter_1)
        got: list[dict[str, Any]] = []
        started = threading.Event()

        def read() -> None:
            body = {"model": "p@1", "prompt": LONG, **EXACT, "temperature": 1, "max_tokens": 350, "stream": True}
            with httpx.stream("POST", url + "/v1/completions", json=body, timeout=60) as response:
                for line in response.iter_lines():
                    if line.startswith("data: {"):
                        got.append(json.loads(line[6:])["choices"][0])
                        started.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert started.wait(30)
        assert load(url, "p@2", adapter_2).status_code == 200
        other = answer(url, "p@2")
        base = answer(url, "tiny")
        assert reader.is_alive()
        reader.join()
        joined = {
            "prompt_token_ids": LONG,
            "token_ids": [i for part in got for i in part["token_ids"]],
            "logprobs": {"token_logprobs": [p for part in got for p in part["logprobs"]["token_logprobs"]]},
        }
        assert len(joined["token_ids"]) == 350
        assert_served_by(joined, model_folder, adapter_1)
        assert_served_by(other, model_folder, adapter_2)
        assert_served_by(base, model_folder, None)


def test_an_unload_lets_the_answers_in_flight_finish(start_engine: Start, adapter_1: Path) -> None:
    with start_engine(max_loras=1) as url:
        load(url, "p@1", adapter_1)
        got: list[dict[str, Any]] = []
        asked = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 300, "ignore_eos": True}
        reader = threading.Thread(target=lambda: got.append(chat(url, model="p@1", **asked)))
        reader.start()
        wait_for(lambda: not is_idle(url))
        assert unload(url, "p@1").text == "Success: LoRA adapter 'p@1' removed successfully."
        assert names(url) == ["tiny"]
        chat(url, status=404, model="p@1")
        reader.join()
        assert got[0]["usage"]["completion_tokens"] == 300
        assert load(url, "p@2", adapter_1).status_code == 200


def test_names_and_slots_are_checked(start_engine: Start, adapter_1: Path, adapter_2: Path) -> None:
    with start_engine(max_loras=2) as url:
        load(url, "a", adapter_1)
        again = load(url, "a", adapter_2)
        assert again.status_code == 400
        assert "has already been loaded" in again.json()["error"]["message"]
        assert load(url, "tiny", adapter_1).status_code == 400
        load(url, "b", adapter_2)
        full = load(url, "c", adapter_1)
        assert full.status_code == 400
        assert "--max-loras" in full.json()["error"]["message"]
        lost = unload(url, "c")
        assert lost.status_code == 404
        assert lost.json()["error"]["message"] == "The lora adapter 'c' cannot be found."
        assert names(url) == ["tiny", "a", "b"]
        assert unload(url, "a").status_code == 200
        assert unload(url, "b").status_code == 200
        assert load(url, "c", adapter_1).status_code == 200


def test_a_body_without_its_fields_is_refused(engine: str) -> None:
    for path in ("load", "unload"):
        answer = httpx.post(f"{engine}/v1/{path}_lora_adapter", json={})
        assert answer.status_code == 400
        assert "lora_name" in answer.json()["error"]["message"]


def broken_config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def broken_tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / "adapter_model.safetensors")
        change(tensors)
        save_file(tensors, folder / "adapter_model.safetensors")

    return apply


KEY = "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"
BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no folder": (shutil.rmtree, "no such folder"),
    "no config": (lambda folder: (folder / "adapter_config.json").unlink(), "no adapter_config.json"),
    "no weights": (lambda folder: (folder / "adapter_model.safetensors").unlink(), "no adapter_model.safetensors"),
    "config no JSON": (lambda folder: (folder / "adapter_config.json").write_text("{"), "no JSON"),
    "weights garbage": (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"x" * 99), "cannot be read"),
    "not LoRA": (broken_config(peft_type="LOHA"), "peft_type"),
    "rank too high": (broken_config(r=64), "--max-lora-rank"),
    "rank differs from tensors": (broken_config(r=8), "shape"),
    "DoRA": (broken_config(use_dora=True), "use_dora"),
    "bias": (broken_config(bias="all"), "bias"),
    "modules to save": (broken_config(modules_to_save=["lm_head"]), "modules_to_save"),
    "head": (broken_config(target_modules=["lm_head"]), "no linear layer"),
    "wrong targets": (broken_config(target_modules=["nothing"]), "no linear layer"),
    "fewer targets": (broken_config(target_modules=["q_proj"]), "lands on no layer"),
    "rank pattern": (broken_config(rank_pattern={"q_proj": 2}), "rank_pattern"),
    "tensor missing": (broken_tensors(lambda tensors: tensors.pop(KEY)), "lack"),
    "wrong prefix": (
        broken_tensors(lambda tensors: tensors.update({KEY.replace("model.layers", "layers"): tensors.pop(KEY)})),
        "lands on no layer",
    ),
    "not finite": (broken_tensors(lambda tensors: tensors[KEY].fill_(float("nan"))), "finite"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_adapter_is_refused_and_changes_nothing(
    engine: str, adapter_1: Path, tmp_path: Path, case: str
) -> None:
    breaks, why = BROKEN[case]
    folder = tmp_path / "broken"
    shutil.copytree(adapter_1, folder)
    breaks(folder)
    before = answer(engine, "tiny")
    refused = load(engine, "broken", folder)
    assert refused.status_code == (404 if case == "no folder" else 400)
    assert why in refused.json()["error"]["message"]
    assert names(engine) == ["tiny"]
    assert answer(engine, "tiny") == before


def test_an_rslora_adapter_is_served_exactly(
    start_engine: Start, model_folder: Path, make_adapter: Callable[..., Path]
) -> None:
    folder = make_adapter(5, use_rslora=True, target_modules=["q_proj", "down_proj"], lora_dropout=0.1)
    with start_engine() as url:
        load(url, "rs", folder)
        assert_served_by(answer(url, "rs"), model_folder, folder)


def test_a_stream_of_an_adapter_echoes_its_name(start_engine: Start, adapter_1: Path) -> None:
    with start_engine() as url:
        load(url, "p@1-abc", adapter_1)
        assert {chunk["model"] for chunk in stream(url, model="p@1-abc")} == {"p@1-abc"}
