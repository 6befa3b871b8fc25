"""`hone doctor -- COMMAND` before the engine that `hone up` would start, with a real tokenizer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AGENT = """
import openai
client = openai.OpenAI()
messages = [{"role": "user", "content": "Price of the lamp?"}]
said = client.chat.completions.create(model="solver", messages=messages, max_tokens=8).choices[0].message.content
messages += [{"role": "assistant", "content": "Forty-two."}, {"role": "user", "content": "Sure?"}]
client.chat.completions.create(model="solver", messages=messages, max_tokens=8)
"""


@pytest.mark.slow
def test_a_rehearsal_starts_the_engine_and_decodes_the_token_at_which_a_history_drifts(
    tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HONE_")}
    settings = {"HONE_POLICIES": f"solver={tiny_model}", "HONE_DATA_DIR": str(tmp_path / "data")}
    run = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "doctor", "--json", "--", sys.executable, "agent.py"],
        env={**kept, **settings, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert (report["engine"], report["num_calls"], report["trained_share"]) == ("embedded", 2, 1.0)
    (drift,) = report["drift"]
    assert drift["in_answer"]
    assert drift["before"].endswith("<|im_start|>assistant\n")
    assert drift["new"]["text"].startswith("Forty")
    assert drift["stored"]["token"] not in (None, "")
    assert report["num_split"] == 1  # nothing told the second call from a new conversation
