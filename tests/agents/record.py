"""Makes `tests/transcripts/`: plays agents and writes down what each sent: `python -m tests.agents.record`.

Run by hand when agents change. A person's word on the role of each call stands in `ROLE_OF`: by the marks that the
agent itself puts on such calls, never by Hone's own rules. Keys never reach this file (`Wire` blots them out); paths,
device ids and the like are replaced; long texts are cut in the middle.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.agents import environments

Json = dict[str, Any]
FOLDER: Final = environments.ROOT / "tests" / "transcripts"
UNKEPT: Final = frozenset({"authorization", "x-api-key", "cookie", "host", "content-length", "connection", "accept"})
LONG: Final = 1500
LONG_IN_TOOLS: Final = 120
_PATH: Final = re.compile(r"/tmp/hone-[a-z-]+-[A-Za-z0-9_]{8}/")
_DEVICE: Final = re.compile(r'(device_id\\?"\s*:\s*\\?")[0-9a-f]+')
_INSTALLATION: Final = re.compile(r'(installation[-_]id\\?"\s*:\s*\\?")[0-9a-f-]+')


def _main(_: Json) -> str:
    return "main"


def _claude_code(call: Json) -> str:
    if "cc_is_subagent=true" in json.dumps(call["body"]["system"]):
        return "subagent"
    return "summary" if "CRITICAL: Respond with TEXT ONLY" in json.dumps(call["body"]["messages"][-1]) else "main"


def _codex(call: Json) -> str:
    if "x-openai-subagent" in call["headers"]:
        return "subagent"
    return "summary" if "CONTEXT CHECKPOINT COMPACTION" in json.dumps(call["body"]["input"][-1]) else "main"


def _opencode(call: Json) -> str:
    system = str(call["body"]["messages"][0]["content"])
    if system.startswith("You are a title generator"):
        return "title"
    if system.startswith("You are a context summarization agent"):
        return "summary"
    return "subagent" if "x-parent-session-id" in call["headers"] else "main"


ROLE_OF: Final[Mapping[str, Callable[[Json], str]]] = {
    "claude-code": _claude_code,
    "codex": _codex,
    "opencode": _opencode,
}
SESSION_FIELDS: Final[Mapping[str, Sequence[str]]] = {
    "claude-code": ("header:X-Claude-Code-Session-Id",),
    "codex": ("header:session-id",),
    "opencode": ("header:x-parent-session-id|x-session-id",),
}
NOTES: Final[Mapping[str, str]] = {
    "claude-code": "one prompt: a file is read, another written",
    "claude-code-subagent": "one prompt; a sub-agent (Explore) reads the file first",
    "claude-code-compaction": "two prompts, and /compact between them: the summary is asked for with all tools offered",
    "codex": "one prompt: a file is read, another written, both by shell",
    "codex-subagent": "one prompt; a sub-agent is started and not waited for; it reports as the user",
    "codex-compaction": "the token limit is passed after the first tool call: the history is summed up, then goes on",
    "opencode": "one prompt; the title is asked for at the same time as the first answer",
    "opencode-subagent": "one prompt; a sub-agent (general) in a session of its own does the work first",
    "opencode-compaction": "the context is full after the first tool call: the history is summed up, then goes on",
    "qwen-code": "one prompt: a file is read, another written, both by shell; an answer nobody gave begins the history",
    "pi": "one prompt: a file is read, another written",
    "agents-sdk": "a triage agent hands the conversation over to a clerk with a tool",
    "langchain-chat": "two parallel tool calls, then the answer",
    "smolagents-tools": "tool calls come back as text in the history; a tool is demanded each time",
}


def transcript(name: str, report: Json) -> Json:
    """One file of `tests/transcripts/`."""
    agent = next((known for known in ROLE_OF if name.startswith(known)), name)
    answers = {call["call_id"]: call["message"] for episode in report["episodes"] for call in episode["calls"]}
    calls = [
        _call(exchange, answers[exchange["hone"]["x-hone-call"]])
        for exchange in report["exchanges"]
        if exchange["hone"].get("x-hone-call") in answers
    ]
    for call in calls:
        call["expected_role"] = ROLE_OF.get(agent, _main)(call)
        call["body"] = _trimmed(call["body"])
    return {
        "agent": agent,
        "version": report["version"],
        "dialect": report["dialect"],
        "episode_from": list(SESSION_FIELDS.get(agent, ())),
        "note": NOTES[name],
        "calls": calls,
    }


def _call(exchange: Json, answer: Any) -> Json:
    headers = {name.lower(): value for name, value in exchange["headers"].items() if name.lower() not in UNKEPT}
    return {"headers": headers, "body": exchange["body"], "answer": answer}


def _trimmed(body: Json) -> Json:
    """The body with its long texts cut; what the system said and the last message stay whole."""
    kept = dict(body)
    if "tools" in body:
        kept["tools"] = _cut(body["tools"], LONG_IN_TOOLS)
    for field in ("messages", "input"):
        if isinstance(body.get(field), list):
            *earlier, last = body[field]
            kept[field] = [_cut_message(message) for message in earlier] + [last]
    return kept


def _cut_message(message: Json) -> Json:
    return message if message.get("role") in ("system", "developer") else _cut(message, LONG)


def _cut(value: Any, limit: int) -> Any:
    match value:
        case str() if len(value) > limit:
            return f"{value[: limit // 2]} […] {value[-limit // 2 :]}"
        case list():
            return [_cut(item, limit) for item in value]
        case dict():
            return {name: _cut(item, limit) for name, item in value.items()}
        case _:
            return value


def _anonymous(text: str) -> str:
    text = _PATH.sub("/home/agent/", text)
    text = _DEVICE.sub(r"\g<1>0", text)
    return _INSTALLATION.sub(r"\g<1>0", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(NOTES))
    names = parser.parse_args().names
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.agents.play", "--alone", "--out", folder, *names]
        subprocess.run(command, check=True)
        for name in names:
            report = json.loads((Path(folder) / f"{name}.json").read_text())
            text = json.dumps(transcript(name, report), ensure_ascii=False, indent=1)
            (FOLDER / f"{name}.json").write_text(_anonymous(text) + "\n")
            print(f"{name}: {len(text) // 1024} KiB")


if __name__ == "__main__":
    main()
