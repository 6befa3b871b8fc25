"""The verdict on roles: what real agents sent, as `tests/transcripts/README.md` says, and the role a person gave it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.conversation import conversation_of, thread_of, traces_of
from gateway.dialects.base import Dialect, Limits
from gateway.dialects.chat import Chat
from gateway.dialects.completions import Completions
from gateway.dialects.messages.dialect import Messages
from gateway.dialects.responses.dialect import Responses
from gateway.roles import settled_role, shape_of

Json = dict[str, Any]
FOLDER = Path(__file__).parents[1] / "transcripts"
DIALECTS: dict[str, Dialect] = {
    "chat": Chat(),
    "completions": Completions(),
    "messages": Messages(),
    "responses": Responses(),
}


def transcripts() -> list[Any]:
    return [pytest.param(path, id=path.stem) for path in sorted(FOLDER.glob("*.json"))]


def read_back(transcript: Json) -> list[tuple[str, str | None]]:
    """For each call its role, and that of the call whose answer it goes on from, as door and store work them out."""
    dialect = DIALECTS[transcript["dialect"]]
    marks: dict[int, bytes] = {}
    answered: dict[tuple[int, bytes], str] = {}
    told: list[tuple[str, str | None]] = []
    for call in transcript["calls"]:
        episode = call.get("episode", 0)
        asked = dialect.parse(json.dumps(call["body"]).encode(), Limits())
        conversation = conversation_of(asked)
        thread, shape = thread_of(conversation), shape_of(asked, conversation)
        known = [answered[episode, trace] for trace in thread.traces if (episode, trace) in answered]
        lineage = known[0] if known else None
        first = marks.setdefault(episode, shape.mark) if shape.mark else b""
        role = settled_role(shape, lineage, first)
        told.append((role, lineage))
        for trace in traces_of(thread.end, call["answer"]) if "answer" in call else ():
            answered[episode, trace] = role
    return told


@pytest.mark.parametrize("path", transcripts())
def test_every_call_of_a_real_agent_has_the_role_a_person_gave_it(path: Path) -> None:
    transcript: Json = json.loads(path.read_bytes())
    assert [role for role, _ in read_back(transcript)] == [call["expected_role"] for call in transcript["calls"]]


@pytest.mark.parametrize("path", transcripts())
def test_an_agent_goes_on_from_its_own_answers_until_it_sums_them_up(path: Path) -> None:
    """What makes a loop one episode where no session field is configured."""
    seen: set[str] = set()
    for role, lineage in read_back(json.loads(path.read_bytes())):
        if role in seen:
            assert lineage == role
        seen = set() if role == "summary" else {*seen, role} - {"title"}
