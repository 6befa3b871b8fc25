"""Coding agents from npm: they read a file and write another, with titles, sub-agents and summaries of their own."""

from __future__ import annotations

from typing import Any, Final

from tests.agents.cast import Agent
from tests.agents.frameworks import FRAMEWORKS
from tests.agents.mind import Cue, Play

SHOUT: Final = "HELLO FROM THE FILE"
SUBAGENT: Final = {"description": "read it", "prompt": "Read greeting.txt and tell me what it says."}
SUMMARY: Final = "The file was read; it is still to be written. (call_00" + "0" * 22 + ")"
"""A summary with the mark of the mind's first turn, which it stands in place of."""


def _coder(name: str, package: str, dialect: str, note: str, turns: tuple[Cue, ...], /, **more: Any) -> Agent:
    """A coding agent; each of its turns is one tool call."""
    aside = more.pop("aside", "A greeting in capitals")
    play = Play(turns=tuple((cue,) for cue in turns), final="The file is written.", aside=aside)
    recipe = f"recipes/{name.replace('-', '_')}.sh"
    usual = {"recipe": recipe, "says": play.final, "num_calls": 3, "writes": {"answer.txt": SHOUT}, "by_key": True}
    return Agent(name=name, package=package, dialect=dialect, note=note, play=play, **{**usual, **more})


CLAUDE: Final = (
    Cue("Read", {"file_path": "greeting.txt"}),
    Cue("Write", {"file_path": "answer.txt", "content": SHOUT}),
)
CODEX: Final = (
    Cue("exec_command", {"cmd": "cat greeting.txt"}),
    Cue("exec_command", {"cmd": f"echo '{SHOUT}' > answer.txt"}),
)
OPENCODE: Final = (
    Cue("read", {"filePath": "greeting.txt"}),
    Cue("write", {"filePath": "answer.txt", "content": SHOUT}),
)
PI: Final = (Cue("read", {"path": "greeting.txt"}), Cue("write", {"path": "answer.txt", "content": SHOUT}))
QWEN: Final = (
    Cue("run_shell_command", {"command": "cat greeting.txt", "is_background": False}),
    Cue("run_shell_command", {"command": f"echo '{SHOUT}' > answer.txt", "is_background": False}),
)

CODERS: Final = (
    _coder("claude-code", "@anthropic-ai/claude-code", "messages", "one row", CLAUDE),
    _coder("codex", "@openai/codex", "responses", "with web search off; one row", CODEX),
    _coder("opencode", "opencode-ai", "chat", "one row; the title it asks for is never trained", OPENCODE, num_calls=4),
    _coder("pi", "@mariozechner/pi-coding-agent", "chat", "one row", PI),
    _coder("qwen-code", "@qwen-code/qwen-code", "chat", "one row", QWEN),
)
SESSIONS: Final = (
    _coder(
        "claude-code-subagent",
        "@anthropic-ai/claude-code",
        "messages",
        "a sub-agent: one episode by `header:X-Claude-Code-Session-Id`, a row for each agent",
        (Cue("Agent", {**SUBAGENT, "subagent_type": "Explore"}), *CLAUDE),
        recipe="recipes/claude_code.sh",
        num_calls=6,
        num_rows=2,
        in_episode=False,
    ),
    _coder(
        "claude-code-compaction",
        "@anthropic-ai/claude-code",
        "messages",
        "`/compact` between two prompts: one episode, three rows",
        CLAUDE,
        recipe="sessions/claude_code_compaction.sh",
        aside=SUMMARY,
        num_calls=7,
        num_rows=3,
        in_episode=False,
    ),
    _coder(
        "codex-subagent",
        "@openai/codex",
        "responses",
        "a sub-agent: one episode by `header:session-id`, a row for each agent",
        (Cue("multi_agent_v1__spawn_agent", {"message": SUBAGENT["prompt"]}), CODEX[1]),
        recipe="recipes/codex.sh",
        num_calls=None,
        num_rows=2,
        in_episode=False,
    ),
    _coder(
        "codex-compaction",
        "@openai/codex",
        "responses",
        "summed up when its token limit is passed: one episode, three rows",
        CODEX,
        recipe="sessions/codex_compaction.sh",
        aside=SUMMARY,
        num_calls=4,
        num_rows=3,
        in_episode=False,
    ),
    _coder(
        "codex-defaults",
        "@openai/codex",
        "responses",
        "with web search on it is refused: only OpenAI's servers can run it; the message says what to set",
        CODEX,
        recipe="sessions/codex_defaults.sh",
        says="web_search runs at OpenAI, not here",
        fails=True,
        in_episode=False,
    ),
    _coder(
        "opencode-subagent",
        "opencode-ai",
        "chat",
        "a sub-agent: one episode by its session headers (below), a row for each agent",
        (Cue("task", {**SUBAGENT, "subagent_type": "general"}), *OPENCODE),
        recipe="recipes/opencode.sh",
        num_calls=8,
        num_rows=2,
        in_episode=False,
    ),
    _coder(
        "opencode-compaction",
        "opencode-ai",
        "chat",
        "summed up when its context is full: one episode, three rows",
        OPENCODE,
        recipe="sessions/opencode_compaction.sh",
        aside=SUMMARY,
        num_calls=5,
        num_rows=3,
        in_episode=False,
    ),
)
CAST: Final = (*FRAMEWORKS, *CODERS, *SESSIONS)
