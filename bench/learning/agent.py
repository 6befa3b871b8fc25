"""The agents of two tasks of `make bench-learn`. They know the `openai` package and nothing of Hone.

`label`: one turn; `a red lamp` must be answered with exactly `lamp/red`. `count`: two turns and a tool; `Any lamp
left?` must be answered with `COUNT(lamp)`, and what the tool says, `some` or `none`, with `Yes.` or `No.`. How jobs
come in is the worker of the lookup agent: `python -m bench.learning.agent label --worker 32`.
"""

import sys
from collections.abc import Mapping
from typing import Any

import openai

from examples.lookup_agent import ask, serve

Messages = list[dict[str, str]]


def chat(system: str, *turns: str) -> Messages:
    """A system prompt and turns of user and assistant, who take turns."""
    roles = ("user", "assistant")
    spoken = [{"role": roles[place % 2], "content": turn} for place, turn in enumerate(turns)]
    return [{"role": "system", "content": system}, *spoken]


def label_prompt(item: str, color: str) -> Messages:
    return chat("Write item/color.", "a gray desk", "desk/gray", f"a {color} {item}")


def count_prompt(item: str) -> Messages:
    examples = ("Any desk left?", "COUNT(desk)", "none", "No.", "Any bag left?", "COUNT(bag)", "some", "Yes.")
    return chat("Tool: COUNT(item)", *examples, f"Any {item} left?")


def play_label(client: openai.OpenAI, job: Mapping[str, Any]) -> dict[str, Any]:
    return {"turns": [ask(client, label_prompt(job["item"], job["color"]))]}


def play_count(client: openai.OpenAI, job: Mapping[str, Any]) -> dict[str, Any]:
    """The tool is only reached by the right call."""
    messages = count_prompt(job["item"])
    turns = [ask(client, messages)]
    if turns[0] == {"content": f"COUNT({job['item']})", "finish_reason": "stop"}:
        said = [("assistant", turns[0]["content"]), ("user", job["found"])]
        messages += [{"role": role, "content": content} for role, content in said]
        turns.append(ask(client, messages))
    return {"turns": turns}


PLAYS = {"label": play_label, "count": play_count}


def main() -> None:
    match sys.argv[1:]:
        case [task, "--worker", num_at_once] if task in PLAYS:
            serve(int(num_at_once), PLAYS[task])
        case _:
            sys.exit("usage: python -m bench.learning.agent label|count --worker N")


if __name__ == "__main__":
    main()
