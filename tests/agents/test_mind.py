"""The scripted engine's mind: histories that come back unchanged extend, edited ones do not."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.agents.mind import Cue, Play, mind, prompt_ids

Json = dict[str, Any]
TOOL: Json = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
PARIS = Cue("weather", {"city": "Paris"})
ROME = Cue("weather", {"city": "Rome"})
words = st.text(alphabet="ab é\n", max_size=20)


def _asked(*messages: Json, tools: bool = True) -> Json:
    return {"messages": list(messages), **({"tools": [TOOL]} if tools else {})}


def _user(text: str) -> Json:
    return {"role": "user", "content": text}


@given(question=words, answer=words)
def test_an_answer_sent_back_unchanged_extends_its_own_ids(question: str, answer: str) -> None:
    body = _asked(_user(question))
    script = mind(Play(final=answer))(body)
    (choice,) = script.choices
    later = _asked(_user(question), {"role": "assistant", "content": answer}, _user("more"))
    seen = [*(script.prompt_ids or ()), *(choice.ids or ())]
    assert prompt_ids(later)[: len(seen)] == seen


def test_tool_calls_extend_whatever_the_spaces_in_their_arguments() -> None:
    body = _asked(_user("?"))
    script = mind(Play(turns=((PARIS, ROME),)))(body)
    (choice,) = script.choices
    assert choice.message is not None
    calls = choice.message["tool_calls"]
    for call in calls:
        call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=2)
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "18"} for call in calls]
    later = _asked(_user("?"), {"role": "assistant", "content": None, "tool_calls": calls}, *results)
    seen = [*(script.prompt_ids or ()), *(choice.ids or ())]
    assert prompt_ids(later)[: len(seen)] == seen


def test_an_edited_history_does_not_extend() -> None:
    seen = prompt_ids(_asked(_user("one two")))
    assert prompt_ids(_asked(_user("one  two"), _user("more")))[: len(seen)] != seen


def test_turns_are_taken_one_after_another_and_then_it_ends() -> None:
    think = mind(Play(turns=((PARIS,), (ROME,)), final="Done."))
    messages = [_user("?")]
    told = []
    for _ in range(3):
        (choice,) = think(_asked(*messages)).choices
        message = choice.message or {"role": "assistant", "content": "".join(choice.texts or ())}
        told.append(message)
        messages.append(message)
    cities = [call["function"]["arguments"] for message in told[:2] for call in message["tool_calls"]]
    assert cities == ['{"city": "Paris"}', '{"city": "Rome"}']
    assert told[2]["content"] == "Done."


def test_what_is_not_offered_is_not_called() -> None:
    (choice,) = mind(Play(turns=((PARIS,),), aside="A title"))(_asked(_user("?"), tools=False)).choices
    assert "".join(choice.texts or ()) == "A title"
