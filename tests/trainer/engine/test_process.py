"""The engine as a process: ready line, free port, end; and the real model of the wheel."""

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.trainer.engine.test_app import chat, completion
from tracker.errors import SettingsError
from trainer.models import resolve_model

pytestmark = pytest.mark.slow


@contextmanager
def process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "trainer.engine", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            line = running.stdout.readline()
            url = re.search(r"http://\S+", line)
            assert url is not None, line
            yield running, url.group()
        finally:
            running.kill()


def test_a_signal_ends_the_process_while_it_generates(model_folder: Path) -> None:
    with process("--model", str(model_folder), "--served-model-name", "mine") as (running, url):
        assert httpx.get(url + "/v1/models", timeout=60).json()["data"][0]["id"] == "mine"
        statuses: list[int] = []

        def ask() -> None:
            body = {"prompt": "x", "max_tokens": 2000, "ignore_eos": True, "n": 8}
            statuses.append(httpx.post(url + "/v1/completions", json=body, timeout=60).status_code)

        asking = threading.Thread(target=ask)
        asking.start()
        while httpx.get(url + "/load", timeout=60).json()["server_load"] == 0:
            pass
        running.send_signal(signal.SIGTERM)
        running.wait(60)
        asking.join()
        assert statuses == [503]


def test_a_model_that_is_not_there_ends_the_process_with_the_reason() -> None:
    command = [sys.executable, "-m", "trainer.engine", "--port", "0", "--model", "/no/such/folder"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "no such model folder" in done.stderr
    with pytest.raises(SettingsError, match="hub id"):
        resolve_model("./nowhere", Path("unused"))


def test_the_bundled_model_is_converted_once_and_agrees_with_a_full_forward_in_bf16(tmp_path: Path) -> None:
    folder = Path(resolve_model("smollm2", tmp_path))
    written = (folder / "model.safetensors").stat().st_mtime_ns
    with process("--model", "smollm2", "--cache-dir", str(tmp_path), "--dtype", "bfloat16") as (_, url):
        name = httpx.get(url + "/v1/models", timeout=60).json()["data"][0]["id"]
        asked = [{"role": "user", "content": "What is the capital of France?"}]
        said = chat(url, messages=asked, temperature=0, max_tokens=20)["choices"][0]["message"]["content"]
        assert "Paris" in said
        gaps: list[float] = []
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        for seed in range(4):
            answer = completion(
                url,
                prompt=f"Story {seed}: once",
                model=name,
                n=8,
                max_tokens=64,
                seed=seed,
                ignore_eos=True,
                logprobs=0,
                return_token_ids=True,
            )
            for choice in answer["choices"]:
                ids = choice["prompt_token_ids"] + choice["token_ids"]
                with torch.inference_mode():
                    logits = model(input_ids=torch.tensor([ids])).logits[0].float()
                rows = torch.log_softmax(logits, -1)[len(choice["prompt_token_ids"]) - 1 : -1]
                full = rows.gather(1, torch.tensor(choice["token_ids"])[:, None])[:, 0]
                gaps += (torch.tensor(choice["logprobs"]["token_logprobs"]) - full).abs().tolist()
    assert len(gaps) >= 2000
    assert sum(gaps) / len(gaps) <= 0.08
    assert resolve_model("smollm2", tmp_path) == str(folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert list(tmp_path.iterdir()) == [folder]
