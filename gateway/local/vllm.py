"""vLLM as `hone up --engine vllm` starts it: the program it is found as, and what it is told.

Everything that follows from the policies is derived here and nowhere else: the rank of adapters rounded up to one that
vLLM takes, as many slots as versions may be live, log-probabilities of the distribution that is sampled from. What the
`[vllm]` table of `hone.toml` says wins over it. vLLM lives in an environment of its own, since it pins what it needs;
looking for that environment is all that is read here.
"""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from tracker.errors import SettingsError

SERVER: Final = "vllm.entrypoints.openai.api_server"
RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What `--max-lora-rank` takes."""
NUM_ALTERNATIVES: Final = 20
"""The most log-probabilities a token may be asked for with: probes of a version take that many."""
OWN_VENV: Final = Path(".venv-vllm")
"""Where `make setup-vllm` puts its CPU build."""
TOOL_PARSER: Final = "hermes"
MEMORY_SHARE: Final = 0.5
"""Of a GPU for all engines of this machine: the trainer needs the rest."""
CPU_CACHE_GIB: Final = "2"
GIVEN: Final = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONUNBUFFERED": "1",
}
START_S: Final = 900.0
"""A large model may have to be fetched and compiled first."""
HAS_VLLM: Final = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
ADVICE: Final = (
    "vLLM lives in an environment of its own: `python3 -m venv ~/vllm && ~/vllm/bin/pip install vllm`, then set "
    "HONE_VLLM_PYTHON=~/vllm/bin/python. Without a GPU, `make setup-vllm` in a checkout of Hone builds one for CPUs."
)


def rank_taken(rank: int) -> int:
    """The least rank that vLLM can be started with for adapters of this rank.

    >>> [rank_taken(rank) for rank in (1, 4, 16, 257)]
    [1, 8, 16, 320]
    """
    return next(known for known in RANKS if known >= rank)


def find_command(command: str | Sequence[str] | None, python: str | None, folders: Sequence[Path]) -> tuple[str, ...]:
    """How vLLM's server is started, without its flags; raises `SettingsError` saying how to get it.

    A command is taken as it is; a Python must have vLLM, its path starts at the first folder. Without either vLLM is
    looked for in a `.venv-vllm` in these folders, in the environment of Hone itself, and on the PATH.
    """
    if command:
        words = tuple(shlex.split(command) if isinstance(command, str) else command)
        if not words or shutil.which(words[0]) is None:
            raise SettingsError(f"HONE_VLLM_COMMAND: there is no program {words[0] if words else ''!r}. {ADVICE}")
        return words
    if python:
        return (_with_vllm(folders[0] / Path(python).expanduser()), "-m", SERVER)
    for folder in dict.fromkeys(folders):
        if (found := folder / OWN_VENV / "bin" / "python").is_file():
            return (_with_vllm(found), "-m", SERVER)
    if importlib.util.find_spec("vllm") is not None:
        return (sys.executable, "-m", SERVER)
    if found_command := shutil.which("vllm"):
        return (found_command, "serve")
    raise SettingsError(f"--engine vllm: vLLM was not found. {ADVICE}")


def _with_vllm(python: Path) -> str:
    """The path of a Python, if it has vLLM. Not resolved: a link is what makes it that of a virtual environment."""
    try:
        done = subprocess.run([str(python), "-c", HAS_VLLM], check=False, capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SettingsError(f"HONE_VLLM_PYTHON: {python} cannot be run ({error}). {ADVICE}") from error
    if done.returncode != 0:
        raise SettingsError(f"HONE_VLLM_PYTHON: {python} has no vLLM. {ADVICE}")
    return str(python)


def derived_options(*, name: str, max_loras: int, max_lora_rank: int, number: int, num_engines: int) -> dict[str, Any]:
    """What follows from the policies, by the name of vLLM's flag."""
    return {
        "served_model_name": name,
        "host": "127.0.0.1",
        "enable_lora": True,
        "max_lora_rank": rank_taken(max_lora_rank),
        "max_loras": max_loras,
        "max_cpu_loras": max_loras,
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": NUM_ALTERNATIVES,
        "enable_prefix_caching": True,
        "enable_scale_out": True,
        "enable_server_load_tracking": True,
        "tool_call_parser": TOOL_PARSER,
        "seed": number,
        "gpu_memory_utilization": round(MEMORY_SHARE / num_engines, 3),
        "disable_uvicorn_access_log": True,
    }


def flags(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Options as a command line has them.

    >>> flags({"enable_lora": True, "max_loras": 4, "async_scheduling": False})
    ('--enable-lora', '--max-loras', '4', '--no-async-scheduling')
    """
    words: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        match value:
            case True:
                words.append(f"--{flag}")
            case False:
                words.append(f"--no-{flag}")
            case dict():
                words += [f"--{flag}", json.dumps(value)]
            case list() | tuple():
                words += [f"--{flag}", *map(str, cast("Sequence[object]", value))]
            case _:
                words += [f"--{flag}", str(value)]
    return tuple(words)


def command_line(command: Sequence[str], model: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """The whole command. A tool parser is of no use unless the model may choose to call; an empty one turns it off.

    >>> command_line(("vllm", "serve"), "m", {"tool_call_parser": ""})
    ('vllm', 'serve', 'm')
    """
    chosen = dict(options)
    if chosen.get("tool_call_parser"):
        chosen["enable_auto_tool_choice"] = True
    else:
        chosen.pop("tool_call_parser", None)
    named = (model,) if command[-1] == "serve" else ("--model", model)
    return (*command, *named, *flags(chosen))


def environment(env: Mapping[str, str], user_path: str | None, key: str | None) -> dict[str, str]:
    """vLLM's environment: the caller's without what is Hone's own, above all its keys and the way to its packages."""
    own = {name: value for name, value in env.items() if not name.startswith("HONE_") and name != "PYTHONPATH"}
    if user_path:
        own["PYTHONPATH"] = user_path
    own.setdefault("VLLM_CPU_KVCACHE_SPACE", CPU_CACHE_GIB)
    own |= GIVEN
    if key:
        own["VLLM_API_KEY"] = key
    return own
