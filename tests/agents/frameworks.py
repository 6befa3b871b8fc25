"""Clients and frameworks in Python: a clerk with a tool, a talk of three turns, a typed answer."""

from __future__ import annotations

from typing import Any, Final

from tests.agents.cast import Agent
from tests.agents.mind import Cue, Play

BOTH: Final = (Cue("weather", {"city": "Paris"}), Cue("weather", {"city": "Lisbon"}))
CLERK: Final = Play(turns=(BOTH,), final="Lisbon is warmer.")
TALK: Final = Play(final="Once upon a time there was a clerk.")
HANDOVER: Final = Play(turns=((Cue("transfer_to_clerk", {}),), BOTH), final=CLERK.final)
STRUCTURED: Final = Play(structured={"city": "Lisbon", "degrees": 24})
TYPED: Final = Play(turns=(BOTH, (Cue("final_result", {"warmer": "Lisbon"}),)), final="Lisbon")
ANSWERING: Final = Play(turns=(BOTH, (Cue("final_answer", {"answer": CLERK.final}),)), final=CLERK.final)
CODE: Final = Play(
    final='Thought: I look both up.\n<code>\nprint(weather("Paris"))\nfinal_answer(weather("Lisbon"))\n</code>'
)
NO_TRACING: Final = {"OPENAI_AGENTS_DISABLE_TRACING": "1"}
FORMS: Final = {"constrained": "train"}


def _agent(name: str, package: str, dialect: str, note: str, /, play: Play = CLERK, **more: Any) -> Agent:
    said = {"recipe": f"recipes/{name.replace('-', '_')}.py", "says": play.final, "play": play, **more}
    return Agent(name=name, package=package, dialect=dialect, note=note, **said)


FRAMEWORKS: Final = (
    _agent("openai-tools", "openai", "chat", "parallel tool calls; one row", by_key=True),
    _agent("openai-stream", "openai", "chat", "async, streamed, three turns; one row", play=TALK, num_calls=3),
    _agent(
        "openai-structured",
        "openai",
        "chat",
        "honoured; the call is trained only in a run with `constrained: train`",
        play=STRUCTURED,
        says="city='Lisbon'",
        num_calls=1,
        num_rows=0,
        num_constrained=1,
    ),
    _agent("openai-responses", "openai", "responses", "streamed, `previous_response_id`; one row", by_key=True),
    _agent("anthropic-tools", "anthropic", "messages", "parallel tool use; one row", by_key=True),
    _agent(
        "anthropic-stream",
        "anthropic",
        "messages",
        "async, streamed, three turns, `count_tokens`; one row",
        play=TALK,
        num_calls=3,
    ),
    _agent(
        "agents-sdk",
        "openai-agents",
        "responses",
        "a handoff: one row for each of the two agents",
        play=HANDOVER,
        num_calls=3,
        num_rows=2,
        env=NO_TRACING,
        by_key=True,
    ),
    _agent("agents-sdk-chat", "openai-agents", "chat", "streamed; one row", env=NO_TRACING),
    _agent("langchain-chat", "langchain-openai", "chat", "streamed; one row"),
    _agent("langchain-messages", "langchain-anthropic", "messages", "one row", by_key=True),
    _agent("langgraph-by-hand", "langgraph", "chat", "one row"),
    _agent(
        "pydantic-ai-chat",
        "pydantic-ai-slim",
        "chat",
        "a typed output demands a tool at each call: not trained, unless as below",
        play=TYPED,
        num_rows=0,
        num_constrained=2,
    ),
    _agent(
        "pydantic-ai-trained",
        "pydantic-ai-slim",
        "chat",
        "the same in a run with `constrained: train`; one row",
        play=TYPED,
        recipe="recipes/pydantic_ai_chat.py",
        run=FORMS,
    ),
    _agent("pydantic-ai-responses", "pydantic-ai-slim", "responses", "one row", by_key=True),
    _agent("pydantic-ai-anthropic", "pydantic-ai-slim", "messages", "one row"),
    _agent("autogen-assistant", "autogen-agentchat", "chat", "one row", by_key=True),
    _agent(
        "smolagents-tools",
        "smolagents",
        "chat",
        "demands a tool at each call: not trained, unless as below",
        play=ANSWERING,
        num_rows=0,
        num_constrained=2,
        by_key=True,
    ),
    _agent(
        "smolagents-trained",
        "smolagents",
        "chat",
        "the same in a run with `constrained: train`; a row for each call, as it writes its history anew",
        play=ANSWERING,
        num_rows=2,
        recipe="recipes/smolagents_tools.py",
        run=FORMS,
    ),
    _agent("smolagents-code", "smolagents", "chat", "one row", play=CODE, says="24 degrees", num_calls=1),
)
