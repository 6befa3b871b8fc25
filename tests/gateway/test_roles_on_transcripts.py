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
from gateway.dialects.messages import Messages
from gateway.dialects.responses import Responses
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


def roles_given(transcript: Json) -> list[str]:
    """The role of each call, as the door and the store work it out together."""
    dialect = DIALECTS[transcript["dialect"]]
    marks: dict[int, bytes] = {}
    answered: dict[tuple[int, bytes], str] = {}
    roles: list[str] = []
    for call in transcript["calls"]:
        episode = call.get("episode", 0)
        asked = dialect.parse(json.dumps(call["body"]).encode(), Limits())
        conversation = conversation_of(asked)
        thread, shape = thread_of(conversation), shape_of(asked, conversation)
        known = [answered[episode, trace.key] for trace in thread.traces if (episode, trace.key) in answered]
        first = marks.setdefault(episode, shape.mark) if shape.mark else b""
        roles.append(settled_role(shape, known[0] if known else None, first))
        if "answer" in call:
            answered |= dict.fromkeys(((episode, t.key) for t in traces_of(thread.end, call["answer"])), roles[-1])
    return roles


@pytest.mark.parametrize("path", transcripts())
def test_every_call_of_a_real_agent_has_the_role_a_person_gave_it(path: Path) -> None:
    transcript: Json = json.loads(path.read_bytes())
    assert roles_given(transcript) == [call["expected_role"] for call in transcript["calls"]]
