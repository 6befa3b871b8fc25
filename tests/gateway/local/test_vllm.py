"""vLLM as `hone up --engine vllm` starts it: where it is found, and what it is told."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.local.plan import LocalPlan, plan_local, vllm_program
from gateway.local.vllm import find_command, rank_taken
from tracker.errors import SettingsError

ENV = {"HONE_LOCAL_ENGINE": "vllm", "HONE_VLLM_COMMAND": "python3 -m served", "HONE_POLICIES": "a=/models/m"}


def fake_python(path: Path, *, has_vllm: bool) -> Path:
    """A program that says, as a Python would, whether it has vLLM."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nexit {0 if has_vllm else 1}\n")
    path.chmod(0o755)
    return path


def plan(cwd: Path, toml: str = "", **env: str) -> LocalPlan:
    (cwd / "hone.toml").write_text(toml)
    return plan_local({**ENV, **env}, cwd, [8610, 8611])


def options(told: LocalPlan, number: int = 0) -> dict[str, Any]:
    """The flags of an engine's command line, by name; a flag without a value is True."""
    argv = vllm_program(told, told.engines[number], "engine", "/models/m").argv[3:]
    pairs: dict[str, Any] = {}
    for word in argv:
        if word.startswith("--"):
            pairs[word] = True
        else:
            pairs[list(pairs)[-1]] = word
    return pairs


def test_the_flags_follow_from_policies_and_runs(tmp_path: Path) -> None:
    toml = '[[policies]]\nname = "a"\nmodel = "m"\nlora = {r = 20}\n[[policies]]\nname = "b"\nmodel = "m"\n'
    told = options(plan(tmp_path, toml + '[[runs]]\nrun = "r"\nstaleness = 3\n', HONE_POLICIES=""))
    assert told["--max-lora-rank"] == "32"
    assert told["--max-loras"] == told["--max-cpu-loras"] == "10", "staleness + 2 of each policy"
    assert told["--served-model-name"] == "m"
    assert told["--model"] == "/models/m"
    assert told["--logprobs-mode"] == "processed_logprobs"
    assert told["--tool-call-parser"] == "hermes"
    for flag in ("--enable-lora", "--enable-prefix-caching", "--enable-scale-out", "--enable-auto-tool-choice"):
        assert told[flag] is True
    assert int(told["--max-logprobs"]) >= 20


def test_what_the_settings_say_wins(tmp_path: Path) -> None:
    toml = '[vllm]\nmax_loras = 9\ntool_call_parser = ""\nmax_model_len = 4096\nasync_scheduling = false\n'
    told = options(plan(tmp_path, toml))
    assert told["--max-loras"] == "9"
    assert told["--max-model-len"] == "4096"
    assert told["--no-async-scheduling"] is True
    assert "--tool-call-parser" not in told
    assert "--enable-auto-tool-choice" not in told


def test_engines_of_several_base_models_share_the_memory_and_draw_differently(tmp_path: Path) -> None:
    told = plan(tmp_path, HONE_POLICIES="a=m,b=n")
    both = [options(told, number) for number in (0, 1)]
    assert [each["--port"] for each in both] == ["8610", "8611"]
    assert sum(float(each["--gpu-memory-utilization"]) for each in both) <= 0.5
    assert both[0]["--seed"] != both[1]["--seed"]


def test_vllm_gets_no_secret_of_hones_and_a_key_of_its_own(tmp_path: Path) -> None:
    told = plan(tmp_path, HONE_DATABASE_URL="postgresql://u:secret@h/d", PYTHONPATH="/mine")
    program = vllm_program(told, told.engines[0], "engine", "/models/m")
    assert not [name for name in program.env if name.startswith("HONE_")]
    assert "secret" not in str(program.env)
    assert program.env["PYTHONPATH"] == "/mine"
    assert program.env["VLLM_API_KEY"] == told.env["HONE_ENGINE_KEY"]
    assert len(told.env["HONE_ENGINE_KEY"]) >= 32
    assert program.env["VLLM_API_KEY"] not in program.argv
    assert program.env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert program.env["VLLM_NO_USAGE_STATS"] == program.env["DO_NOT_TRACK"] == "1"
    assert plan(tmp_path, HONE_ENGINE_KEY="mine").env["HONE_ENGINE_KEY"] == "mine"


def test_engines_that_run_already_need_no_vllm(tmp_path: Path) -> None:
    told = plan(tmp_path, HONE_ENGINES="http://e:1", HONE_VLLM_COMMAND="no-such-program")
    assert told.engines == told.vllm == ()


def test_the_embedded_engine_is_the_default_and_a_word_that_is_no_engine_is_refused(tmp_path: Path) -> None:
    assert plan(tmp_path, HONE_LOCAL_ENGINE="").vllm == ()
    with pytest.raises(SettingsError, match="local_engine"):
        plan(tmp_path, HONE_LOCAL_ENGINE="sglang")
    with pytest.raises(SettingsError, match="HONE_LOCAL_ENGINE"):
        plan(tmp_path, HONE_LOCAL_ENGINE="", HONE_ENGINE="vllm")


def test_vllm_is_found_where_it_usually_is(tmp_path: Path) -> None:
    named = fake_python(tmp_path / "other" / "python", has_vllm=True)
    assert find_command(None, "other/python", [tmp_path]) == (str(named), "-m", "vllm.entrypoints.openai.api_server")
    usual = fake_python(tmp_path / ".venv-vllm" / "bin" / "python", has_vllm=True)
    assert find_command(None, None, [tmp_path])[0] == str(usual)
    assert find_command(f"{sys.executable} -m 'a b'", None, [tmp_path]) == (sys.executable, "-m", "a b")
    assert find_command([sys.executable, "x"], None, [tmp_path]) == (sys.executable, "x")


def test_a_missing_vllm_is_an_error_that_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    fake_python(tmp_path / "bare", has_vllm=False)
    for command, python in ((None, None), ("no-such-program", None), (None, "bare"), (None, "missing")):
        with pytest.raises(SettingsError, match="pip install vllm"):
            find_command(command, python, [tmp_path])


def test_ranks_are_rounded_up_to_what_vllm_takes() -> None:
    assert [rank_taken(rank) for rank in (1, 2, 8, 9, 64, 65, 300, 512)] == [1, 8, 8, 16, 64, 128, 320, 512]
