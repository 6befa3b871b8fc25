"""The command line."""

import dataclasses
from pathlib import Path

import pytest

from trainer.engine.config import EngineConfig, parse_config


def test_the_defaults_of_the_command_line_are_those_of_the_record() -> None:
    assert parse_config(["--model", "m"], {}) == EngineConfig(model="m")


def test_every_flag_reaches_its_field() -> None:
    line = (
        "--model m --host ::1 --port 0 --served-model-name s --dtype float32 --max-model-len 9 --max-num-seqs 8 "
        "--max-loras 7 --max-lora-rank 6 --max-batch-tokens 5 --prefix-tokens 4 --cache-dir /c --threads 3"
    )
    got = parse_config(line.split(), {"HONE_ENGINE_KEY": "k", "HONE_OTHER": "x"})
    assert dataclasses.astuple(got) == ("m", "::1", 0, "s", "float32", 9, 8, 7, 6, 5, 4, Path("/c"), 3, "k")


def test_an_empty_key_is_none() -> None:
    assert parse_config(["--model", "m"], {"HONE_ENGINE_KEY": ""}).key is None


@pytest.mark.parametrize("line", ["", "--model m --max-loras 0", "--model m --dtype int8"])
def test_what_cannot_work_ends_the_process(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_config(line.split(), {})
    assert "usage" in capsys.readouterr().err
