"""The agents that are tried: what each runs, what the scripted engine has it do, and what must come of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.agents.mind import Cue, Play

Identity = str
"""`episode`: an episode is opened and its `env` given; `key`: an ordinary key and the base URL alone."""

BOTH: Final = (Cue("weather", {"city": "Paris"}), Cue("weather", {"city": "Lisbon"}))
CLERK: Final = Play(turns=(BOTH,), final="Lisbon is warmer.")
TALK: Final = Play(final="Once upon a time there was a clerk.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One agent and what is expected of it."""

    name: str
    packages: tuple[str, ...]
    """The first one's version is told."""
    recipe: str
    """A file below this folder."""
    dialect: str
    play: Play
    says: str
    """What its output must have."""
    fails: bool = False
    """Whether it cannot work so: then its output must tell why."""
    num_calls: int | None = 2
    """How many calls it makes; `None` where that is a race between its parts."""
    num_rows: int = 1
    """How many rows they make."""
    num_constrained: int = 0
    """How many calls are excluded because the agent forces a form on them."""
    writes: Mapping[str, str] = field(default_factory=dict)
    """Files that must be there at the end."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Settings of its own: telemetry off, and what its recipe says."""
    in_episode: bool = True
    """Tried in an episode that was opened for it."""
    by_key: bool = False
    """Tried with an ordinary key and no episode, too."""
    run: Mapping[str, str] = field(default_factory=dict)
    """Settings of the run that its episode belongs to; default: those of the default run."""

    @property
    def kind(self) -> str:
        return "python" if self.recipe.endswith(".py") else "npm"


def _agent(name: str, package: str, dialect: str, play: Play = CLERK, **more: object) -> Agent:
    said = {"says": play.final, "recipe": f"recipes/{name.replace('-', '_')}.py", **more}
    return Agent(name=name, packages=(package,), dialect=dialect, play=play, **said)  # type: ignore[arg-type]


NO_TRACING: Final = {"OPENAI_AGENTS_DISABLE_TRACING": "1"}
FORMS: Final = {"constrained": "train"}
HANDOVER: Final = Play(turns=((Cue("transfer_to_clerk", {}),), BOTH), final=CLERK.final)
STRUCTURED: Final = Play(structured={"city": "Lisbon", "degrees": 24})
TYPED: Final = Play(turns=(BOTH, (Cue("final_result", {"warmer": "Lisbon"}),)))
ANSWERING: Final = Play(turns=(BOTH, (Cue("final_answer", {"answer": "Lisbon is warmer."}),)))
CODE: Final = Play(
    final='Thought: I look both up.\n<code>\nprint(weather("Paris"))\nfinal_answer(weather("Lisbon"))\n</code>'
)

FRAMEWORKS: Final = (
    _agent("openai-tools", "openai", "chat", by_key=True),
    _agent("openai-stream", "openai", "chat", TALK, num_calls=3),
    _agent(
        "openai-structured",
        "openai",
        "chat",
        STRUCTURED,
        says="city='Lisbon'",
        num_calls=1,
        num_rows=0,
        num_constrained=1,
    ),
    _agent("openai-responses", "openai", "responses", by_key=True),
    _agent("anthropic-tools", "anthropic", "messages", by_key=True),
    _agent("anthropic-stream", "anthropic", "messages", TALK, num_calls=3),
    _agent("agents-sdk", "openai-agents", "responses", HANDOVER, num_calls=3, num_rows=2, env=NO_TRACING, by_key=True),
    _agent("agents-sdk-chat", "openai-agents", "chat", env=NO_TRACING),
    _agent("langchain-chat", "langchain-openai", "chat"),
    _agent("langchain-messages", "langchain-anthropic", "messages", by_key=True),
    _agent("langgraph-by-hand", "langgraph", "chat"),
    _agent("pydantic-ai-chat", "pydantic-ai-slim", "chat", TYPED, says="Lisbon", num_rows=0, num_constrained=2),
    _agent(
        "pydantic-ai-trained",
        "pydantic-ai-slim",
        "chat",
        TYPED,
        says="Lisbon",
        recipe="recipes/pydantic_ai_chat.py",
        run=FORMS,
    ),
    _agent("pydantic-ai-responses", "pydantic-ai-slim", "responses", by_key=True),
    _agent("pydantic-ai-anthropic", "pydantic-ai-slim", "messages"),
    _agent("autogen-assistant", "autogen-agentchat", "chat", by_key=True),
    _agent(
        "smolagents-tools",
        "smolagents",
        "chat",
        ANSWERING,
        says=CLERK.final,
        num_rows=0,
        num_constrained=2,
        by_key=True,
    ),
    _agent(
        "smolagents-trained",
        "smolagents",
        "chat",
        ANSWERING,
        says=CLERK.final,
        num_rows=2,
        recipe="recipes/smolagents_tools.py",
        run=FORMS,
    ),
    _agent("smolagents-code", "smolagents", "chat", CODE, says="24 degrees", num_calls=1),
)
SHOUT: Final = "HELLO FROM THE FILE"


READ_ALREADY: Final = "call_00" + "0" * 22
"""What a mind takes for its first turn, where a summary stands in place of the turn itself."""


def _coder(name: str, package: str, dialect: str, *turns: Cue, aside: str = "A greeting", **more: object) -> Agent:
    """A coding agent that reads one file and writes another, a turn each."""
    play = Play(turns=tuple((cue,) for cue in turns), final="The file is written.", aside=aside)
    recipe = f"recipes/{name.replace('-', '_')}.sh"
    said = {
        "says": play.final,
        "recipe": recipe,
        "num_calls": 3,
        "by_key": True,
        "writes": {"answer.txt": SHOUT},
        **more,
    }
    return Agent(name=name, packages=(package,), dialect=dialect, play=play, **said)  # type: ignore[arg-type]


CODERS: Final = (
    _coder(
        "pi",
        "@mariozechner/pi-coding-agent",
        "chat",
        Cue("read", {"path": "greeting.txt"}),
        Cue("write", {"path": "answer.txt", "content": SHOUT}),
    ),
    _coder(
        "opencode",
        "opencode-ai",
        "chat",
        Cue("read", {"filePath": "greeting.txt"}),
        Cue("write", {"filePath": "answer.txt", "content": SHOUT}),
        num_calls=4,
    ),
    _coder(
        "claude-code",
        "@anthropic-ai/claude-code",
        "messages",
        Cue("Read", {"file_path": "greeting.txt"}),
        Cue("Write", {"file_path": "answer.txt", "content": SHOUT}),
    ),
    _coder(
        "qwen-code",
        "@qwen-code/qwen-code",
        "chat",
        Cue("run_shell_command", {"command": "cat greeting.txt", "is_background": False}),
        Cue("run_shell_command", {"command": f"echo '{SHOUT}' > answer.txt", "is_background": False}),
    ),
    _coder(
        "codex",
        "@openai/codex",
        "responses",
        Cue("exec_command", {"cmd": "cat greeting.txt"}),
        Cue("exec_command", {"cmd": f"echo '{SHOUT}' > answer.txt"}),
    ),
)


def _session(name: str, package: str, dialect: str, *turns: Cue, aside: str = "A greeting", **more: object) -> Agent:
    """A coding agent with sub-agents or summaries, which only a session field keeps in one implicit episode."""
    return _coder(name, package, dialect, *turns, aside=aside, **{"in_episode": False, **more})


SUBAGENT: Final = {"description": "read it", "prompt": "Read greeting.txt and tell me what it says."}
SESSIONS: Final = (
    _session(
        "opencode-subagent",
        "opencode-ai",
        "chat",
        Cue("task", {**SUBAGENT, "subagent_type": "general"}),
        Cue("read", {"filePath": "greeting.txt"}),
        Cue("write", {"filePath": "answer.txt", "content": SHOUT}),
        recipe="recipes/opencode.sh",
        num_calls=8,
        num_rows=2,
    ),
    _session(
        "opencode-compaction",
        "opencode-ai",
        "chat",
        Cue("read", {"filePath": "greeting.txt"}),
        Cue("write", {"filePath": "answer.txt", "content": SHOUT}),
        recipe="sessions/opencode_compaction.sh",
        aside=f"The file was read; it is still to be written. ({READ_ALREADY})",
        num_calls=5,
        num_rows=3,
    ),
    _session(
        "claude-code-subagent",
        "@anthropic-ai/claude-code",
        "messages",
        Cue("Agent", {**SUBAGENT, "subagent_type": "Explore"}),
        Cue("Read", {"file_path": "greeting.txt"}),
        Cue("Write", {"file_path": "answer.txt", "content": SHOUT}),
        recipe="recipes/claude_code.sh",
        num_calls=6,
        num_rows=2,
    ),
    _session(
        "claude-code-compaction",
        "@anthropic-ai/claude-code",
        "messages",
        Cue("Read", {"file_path": "greeting.txt"}),
        Cue("Write", {"file_path": "answer.txt", "content": SHOUT}),
        recipe="sessions/claude_code_compaction.sh",
        aside=f"The file was read; it is still to be written. ({READ_ALREADY})",
        num_calls=7,
        num_rows=3,
    ),
    _session(
        "codex-subagent",
        "@openai/codex",
        "responses",
        Cue("multi_agent_v1__spawn_agent", {"message": "Read greeting.txt and tell me what it says."}),
        Cue("exec_command", {"cmd": f"echo '{SHOUT}' > answer.txt"}),
        recipe="recipes/codex.sh",
        num_calls=None,
        num_rows=2,
    ),
    _session(
        "codex-defaults",
        "@openai/codex",
        "responses",
        Cue("exec_command", {"cmd": f"echo '{SHOUT}' > answer.txt"}),
        recipe="sessions/codex_defaults.sh",
        says="web_search runs at OpenAI, not here",
        fails=True,
        writes={},
    ),
    _session(
        "codex-compaction",
        "@openai/codex",
        "responses",
        Cue("exec_command", {"cmd": "cat greeting.txt"}),
        Cue("exec_command", {"cmd": f"echo '{SHOUT}' > answer.txt"}),
        recipe="sessions/codex_compaction.sh",
        aside=f"The file was read; it is still to be written. ({READ_ALREADY})",
        num_calls=4,
        num_rows=3,
    ),
)
CAST: Final = (*FRAMEWORKS, *CODERS, *SESSIONS)
