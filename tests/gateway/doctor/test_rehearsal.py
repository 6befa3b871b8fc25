"""`hone doctor -- COMMAND` as people run it, with agents that know nothing of Hone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.agent_command import agent_env

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "lookup_agent.py"
DRIFTING = """
import anthropic, openai
client = openai.OpenAI()
tool = {"type": "function", "function": {"name": "get_price", "parameters": {
    "type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}}}
messages = [{"role": "user", "content": "Price of the lamp?"}]
asked = client.chat.completions.create(model="gpt-4o", messages=messages, tools=[tool], temperature=0.3)
call = asked.choices[0].message.tool_calls[0]
assert call.function.arguments == '{"item": "example"}'
messages += [asked.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "42"}]
said = "".join(
    chunk.choices[0].delta.content or ""
    for chunk in client.chat.completions.create(model="gpt-4o", messages=messages, tools=[tool], stream=True)
)
messages += [{"role": "assistant", "content": said.upper()}, {"role": "user", "content": "Sure?"}]
client.chat.completions.create(model="gpt-4o", messages=messages, tools=[tool])
try:
    client.chat.completions.create(model="gpt-4o", messages=messages, functions=[{"name": "f"}])
except openai.BadRequestError as refused:
    print("refused:", refused)
claude = anthropic.Anthropic()
claude.messages.create(model="claude", max_tokens=50, messages=[{"role": "user", "content": "hi"}])
"""


def doctor(tmp_path: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HONE_")}
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", "doctor", *arguments],
        env={**kept, "PYTHONPATH": str(ROOT), "HONE_DATA_DIR": str(tmp_path / "data"), **env},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )


def told(run: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(run.stdout)


def test_the_example_agent_is_trainable(tmp_path: Path) -> None:
    run = doctor(tmp_path, "--engine", "scripted", "--", sys.executable, str(EXAMPLE), "lamp", "37")
    assert run.returncode == 0, run.stderr
    assert '"item": "lamp"' in run.stdout  # its own output is shown
    assert "trainable: 100% of the sampled tokens" in run.stdout
    assert not (tmp_path / "data").exists()  # nothing is left where the user's own data lies


def test_an_agent_that_rewrites_what_the_model_said_is_told_the_first_token_that_differs(tmp_path: Path) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text(DRIFTING)
    run = doctor(tmp_path, "--engine", "scripted", "--json", "--", sys.executable, str(agent))
    assert run.returncode == 0, run.stderr
    report = told(run)
    assert (report["trainable"], report["num_calls"], report["trained_share"]) == (True, 4, 1.0)
    assert report["dialects"] == {"chat": 3, "messages": 1}
    assert report["steps"] == {"starts": 2, "extends": 1, "forks": 0, "drifts": 1}
    (drift,) = report["drift"]
    assert drift["in_answer"]
    assert drift["before"].endswith("<|start|>assistant\n")
    assert (drift["stored"]["token"], drift["new"]["token"]) == ("This", "THIS")
    assert drift["stored"]["text"].startswith("This is a scripted answer.")
    assert report["not_honoured"][0] == {"field": "temperature", "asked": "0.3", "sent": "1", "num_calls": 1}
    (refused,) = report["refused"]
    assert (refused["status"], refused["param"], refused["times"]) == (400, "functions", 1)
    assert "refused:" in run.stderr


def test_what_is_not_trainable_and_what_could_not_run_have_a_status_of_their_own(tmp_path: Path) -> None:
    run = doctor(tmp_path, "--engine", "scripted", "--episode", "--", sys.executable, "-c", "raise SystemExit(3)")
    assert run.returncode == 1
    assert "the command ended with status 3; no call to a policy was recorded" in run.stdout.replace("\n", " ")
    run = doctor(tmp_path, "--engine", "scripted", "--", "no-such-command")
    assert (run.returncode, run.stderr.count("\n")) == (2, 1)
    assert "no-such-command could not be run" in run.stderr
    run = doctor(tmp_path, "--engine", "embedded", "--", "true", HONE_ENGINES="http://127.0.0.1:9")
    assert run.returncode == 2
    assert "leave --engine out" in run.stderr


def test_the_environment_reaches_every_sdk_and_no_proxy() -> None:
    env = agent_env({"NO_PROXY": "corp", "ANTHROPIC_AUTH_TOKEN": "mine", "X": "1"}, "http://127.0.0.1:1", "k")
    assert env["OPENAI_BASE_URL"] == "http://127.0.0.1:1/v1"
    assert env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:1"
    assert {env["OPENAI_API_KEY"], env["ANTHROPIC_API_KEY"], env["ANTHROPIC_AUTH_TOKEN"]} == {"k"}
    assert (env["NO_PROXY"], env["no_proxy"], env["X"]) == ("corp,127.0.0.1,localhost", "127.0.0.1,localhost", "1")
    assert "ANTHROPIC_AUTH_TOKEN" not in agent_env({}, "http://127.0.0.1:1", "k")
