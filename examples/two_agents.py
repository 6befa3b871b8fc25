"""Two agents that work on one task: a solver calls a tool, a checker says whether the call is right.

Each asks for a model of its own name; where that model is, `OPENAI_BASE_URL` and `OPENAI_API_KEY` say, as for any
program that uses the `openai` package:

    OPENAI_BASE_URL=http://127.0.0.1:8600/v1 OPENAI_API_KEY=... python examples/two_agents.py lamp

prints what each of them said as one JSON line, with the id of the answer. They know nothing of Hone.
"""

import asyncio
import json
import sys
from typing import Any

import openai

SOLVER = "solver"
CHECKER = "checker"
MAX_TOKENS = 10
"""Of one answer. A call is 3 to 8 tokens, a verdict one."""


def conversation(system: str, *turns: str) -> list[dict[str, str]]:
    """Examples as chat turns, then the question."""
    roles = ("user", "assistant")
    return [
        {"role": "system", "content": system},
        *({"role": roles[at % 2], "content": turn} for at, turn in enumerate(turns)),
    ]


def question_to_solver(item: str) -> list[dict[str, str]]:
    return conversation("Tool: LOOKUP(item)", "Price of the desk?", "LOOKUP(desk)", f"Price of the {item}?")


def question_to_checker(item: str, call: str) -> list[dict[str, str]]:
    examples = ("desk: LOOKUP(desk)", "yes", "sofa: LOOKUP(42)", "no")
    return conversation("Is the call right for the item?", *examples, f"{item}: {call}")


async def ask(client: openai.AsyncOpenAI, model: str, messages: list[dict[str, str]]) -> dict[str, Any]:
    """One model call: what was said, whether it ended by itself, and the id of the answer."""
    answer = await client.chat.completions.create(
        model=model,
        messages=messages,  # type: ignore[arg-type]
        max_tokens=MAX_TOKENS,
        temperature=1.0,
    )
    choice = answer.choices[0]
    return {"id": answer.id, "content": choice.message.content or "", "ended": choice.finish_reason == "stop"}


async def play(client: openai.AsyncOpenAI, item: str) -> dict[str, Any]:
    """One attempt: the solver's call, then the checker's verdict on it."""
    called = await ask(client, SOLVER, question_to_solver(item))
    verdict = await ask(client, CHECKER, question_to_checker(item, called["content"]))
    return {"item": item, SOLVER: called, CHECKER: verdict}


async def main() -> None:
    match sys.argv[1:]:
        case [item]:
            print(json.dumps(await play(openai.AsyncOpenAI(), item)))
        case _:
            sys.exit("usage: two_agents.py ITEM")


if __name__ == "__main__":
    asyncio.run(main())
