"""An agent that answers "Price of the lamp?" with a tool. It knows the `openai` package and nothing of Hone.

It speaks a tiny text protocol of two turns: the model must write `LOOKUP(lamp)`, the tool answers with a number, and
the model must repeat that number. `OPENAI_BASE_URL` and `OPENAI_API_KEY` say where the model is, as for any program
that uses the package:

    OPENAI_BASE_URL=http://127.0.0.1:8600/v1 OPENAI_API_KEY=... python examples/lookup_agent.py lamp 37

prints what happened as one JSON line. With `--worker N` it takes jobs from standard input instead, one JSON object a
line, `{"item": "lamp", "price": 37, "env": {"OPENAI_BASE_URL": ..., "OPENAI_API_KEY": ...}}`, plays N of them at a
time, and prints one line for each: starting Python a thousand times takes longer than playing.
"""

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai

MODEL = os.environ.get("AGENT_MODEL", "solver")
TEMPERATURE = float(os.environ.get("AGENT_TEMPERATURE", "1"))
MAX_TOKENS = 10
"""Of one answer. A call is 3 to 8 tokens, a price 2 or 3."""

PROMPT = [
    {"role": "system", "content": "Tool: LOOKUP(item)"},
    {"role": "user", "content": "Price of the desk?"},
    {"role": "assistant", "content": "LOOKUP(desk)"},
    {"role": "user", "content": "42"},
    {"role": "assistant", "content": "42"},
]


Play = Callable[[openai.OpenAI, Mapping[str, Any]], dict[str, Any]]
"""Plays one job and tells what happened."""


def ask(client: openai.OpenAI, messages: list[dict[str, str]]) -> dict[str, Any]:
    """One model call; the whole answer and why it ended."""
    answer = client.chat.completions.create(
        model=MODEL,
        messages=messages,  # type: ignore[arg-type]
        max_tokens=MAX_TOKENS,
        temperature=TEMPERATURE,
    )
    choice = answer.choices[0]
    return {"content": choice.message.content or "", "finish_reason": choice.finish_reason}


def play(client: openai.OpenAI, job: Mapping[str, Any]) -> dict[str, Any]:
    """One conversation: the question, the model's tool call, the tool's answer, the model's answer."""
    item, price = job["item"], job["price"]
    messages = [*PROMPT, {"role": "user", "content": f"Price of the {item}?"}]
    turns = [ask(client, messages)]
    called = re.fullmatch(r"LOOKUP\((.*)\)", turns[0]["content"])
    if called and called[1] == item and turns[0]["finish_reason"] == "stop":
        messages += [{"role": "assistant", "content": turns[0]["content"]}, {"role": "user", "content": str(price)}]
        turns.append(ask(client, messages))
    return {"item": item, "price": price, "turns": turns}


def work(line: str, http: httpx.Client, play: Play) -> dict[str, Any]:
    """One job of the worker: an outcome, or the error that ended it."""
    job = json.loads(line)
    env: Mapping[str, str] = job["env"]
    client = openai.OpenAI(
        base_url=env["OPENAI_BASE_URL"], api_key=env["OPENAI_API_KEY"], http_client=http, timeout=300, max_retries=5
    )
    try:
        outcome = play(client, job)
    except openai.OpenAIError as error:
        outcome = {"error": f"{type(error).__name__}: {error}"}
    return {"job": job.get("job"), **outcome}


def serve(num_at_once: int, play: Play = play) -> None:
    """Play jobs from standard input until it ends, sharing one pool of connections."""
    lock = threading.Lock()
    limits = httpx.Limits(max_connections=num_at_once, max_keepalive_connections=num_at_once)

    def job(line: str) -> None:
        outcome = json.dumps(work(line, http, play))
        with lock:
            print(outcome, flush=True)

    with httpx.Client(limits=limits, timeout=300) as http, ThreadPoolExecutor(num_at_once) as pool:
        running = [pool.submit(job, line) for line in sys.stdin]
        for one in running:
            one.result()


def main() -> None:
    match sys.argv[1:]:
        case ["--worker", num_at_once]:
            serve(int(num_at_once))
        case [item, price]:
            print(json.dumps(play(openai.OpenAI(), {"item": item, "price": int(price)})))
        case _:
            sys.exit("usage: lookup_agent.py ITEM PRICE | lookup_agent.py --worker N")


if __name__ == "__main__":
    main()
