"""An agent for small tasks of two kinds: `lookup` a word with a tool, or `shout` it. It knows nothing of Hone.

`OPENAI_BASE_URL` and `OPENAI_API_KEY` say where the model is, as for any program that uses the `openai` package:

    OPENAI_BASE_URL=http://127.0.0.1:8600/v1 OPENAI_API_KEY=... python examples/small_tasks.py shout lamp
"""

import asyncio
import json
import sys
from typing import Any

import openai

MODEL = "solver"
MAX_TOKENS = 10
EXAMPLES = {
    "lookup": ("Tool: LOOKUP(item)", "Price of the desk?", "LOOKUP(desk)"),
    "shout": ("Shout.", "desk", "DESK"),
}
"""kind -> what the system says, and one question with its answer."""


def messages_for(kind: str, word: str) -> list[dict[str, str]]:
    system, question, answer = EXAMPLES[kind]
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": question},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": question.replace("desk", word)},
    ]


def right_answer(kind: str, word: str) -> str:
    return f"LOOKUP({word})" if kind == "lookup" else word.upper()


async def play(client: openai.AsyncOpenAI, kind: str, word: str) -> dict[str, Any]:
    """One attempt: one question, one answer."""
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=messages_for(kind, word),  # type: ignore[arg-type]
        max_tokens=MAX_TOKENS,
        temperature=1.0,
    )
    choice = answer.choices[0]
    return {"content": choice.message.content or "", "ended": choice.finish_reason == "stop"}


async def main() -> None:
    match sys.argv[1:]:
        case [kind, word] if kind in EXAMPLES:
            print(json.dumps(await play(openai.AsyncOpenAI(), kind, word)))
        case _:
            sys.exit(f"usage: small_tasks.py {'|'.join(EXAMPLES)} WORD")


if __name__ == "__main__":
    asyncio.run(main())
