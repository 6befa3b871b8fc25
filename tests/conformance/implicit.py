"""Agents that know nothing of episodes: which calls belong together, by what they send back of what they got."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.conformance.forms import CHAT, MESSAGES, RESPONSES, Answered, Form, Json, Sibling, user
from tests.conformance.rules import rule
from tests.conformance.scene import Episode, Scene, reasons, rows
from tests.fakes.scripted_answers import Answer, Script

NEEDS = ("implicit", "samples")


def plain(scene: Scene) -> Episode:
    """An agent with an ordinary key."""
    return Episode(scene.gateway.keys.agent)


async def ask(scene: Scene, form: Form = CHAT, about: str = "", **more: Any) -> Answered:
    answered = await scene.ask(plain(scene), form, about, **more)
    assert answered.status == 200, answered.raw
    return answered


def episode_of(answered: Answered) -> str:
    return answered.headers["x-hone-episode"]


def continued(form: Form, scene: Scene, answered: Answered, **edits: Any) -> Json:
    """The next request of a conversation: the question, the answer as it came, another question."""
    first = user(f"{scene.tag} hi")
    if form is RESPONSES:
        return {"input": [first, *[{**item, **edits} for item in answered.json["output"]], user("more")]}
    if form is MESSAGES:
        return {"messages": [first, {"role": "assistant", "content": answered.json["content"], **edits}, user("more")]}
    return {"messages": [first, {**answered.json["choices"][0]["message"], **edits}, user("more")]}


TALKERS = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}


@rule("{0}: a call that sends back an answer continues its episode", needs=NEEDS, each=TALKERS)
async def continues(scene: Scene, form: Form) -> None:
    first = await ask(scene, form)
    second = await ask(scene, form, **continued(form, scene, first))
    assert episode_of(second) == episode_of(first)
    third = await ask(scene, form, **continued(form, scene, first))
    assert episode_of(third) == episode_of(first)


@rule("{0}: an answer that was streamed is recognised too", needs=NEEDS, each=TALKERS)
async def continues_streamed(scene: Scene, form: Form) -> None:
    first = await ask(scene, form, stream=True)
    text = form.text(first)
    part: Json = {"role": "assistant", "content": text}
    conversation = [user(f"{scene.tag} hi"), part, user("more")]
    name = "input" if form is RESPONSES else "messages"
    second = await ask(scene, form, **{name: conversation})
    assert episode_of(second) == episode_of(first)


@rule("a conversation in one dialect goes on in another", needs=[*NEEDS, "messages"])
async def changes_dialect(scene: Scene) -> None:
    first = await ask(scene)
    said = first.json["choices"][0]["message"]["content"]
    conversation = [user(f"{scene.tag} hi"), {"role": "assistant", "content": said}, user("more")]
    assert episode_of(await ask(scene, MESSAGES, messages=conversation)) == episode_of(first)


@rule("an answer that was edited opens a new episode", needs=NEEDS)
async def edited(scene: Scene) -> None:
    first = await ask(scene)
    second = await ask(scene, **continued(CHAT, scene, first, content="I said nothing of the kind"))
    assert episode_of(second) != episode_of(first)


@rule("another question before the same answer opens a new episode", needs=NEEDS)
async def another_question(scene: Scene) -> None:
    first = await ask(scene)
    said = first.json["choices"][0]["message"]
    second = await ask(scene, messages=[user(f"{scene.tag} something else"), said, user("more")])
    assert episode_of(second) != episode_of(first)


@rule("another system prompt does not part a conversation", needs=NEEDS)
async def system_prompt_changes(scene: Scene) -> None:
    first = await ask(scene)
    more = continued(CHAT, scene, first)["messages"]
    second = await ask(scene, messages=[{"role": "system", "content": "it is 12:01"}, *more])
    assert episode_of(second) == episode_of(first)


CALL: Json = {"id": "", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}


@rule("an answer is recognised by its tool-call ids, whatever else was rewritten", needs=NEEDS)
async def by_tool_call_ids(scene: Scene) -> None:
    call = {**CALL, "id": f"call_{scene.tag}"}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    await scene.answers(Script(choices=(Answer(ids=(5, 99), message=message, finish_reason="tool_calls"),)))
    first = await ask(scene)
    rewritten = {**call, "function": {"name": "f", "arguments": '{ "a": 1 }'}}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "42"}
    messages = [user("compacted"), {**message, "content": "", "tool_calls": [rewritten]}, result]
    second = await ask(scene, messages=[*messages, user(scene.tag)])
    assert episode_of(second) == episode_of(first)


@rule("two conversations that begin alike stay apart: {0}", needs=NEEDS, each={"in turn": False, "at once": True})
async def begin_alike(scene: Scene, at_once: bool) -> None:
    if at_once:
        one, other = await asyncio.gather(ask(scene), ask(scene))
    else:
        one, other = await ask(scene), await ask(scene)
    assert episode_of(one) != episode_of(other)
    for answered in (one, other):
        assert (await scene.samples(Episode("", episode_of(answered))))["excluded"] == []


@rule("of two equal conversations the oldest that nobody continued goes on first", needs=NEEDS)
async def ties(scene: Scene) -> None:
    one, other = await ask(scene), await ask(scene)
    assert one.json["choices"][0]["message"] == other.json["choices"][0]["message"]
    nexts = [episode_of(await ask(scene, **continued(CHAT, scene, one))) for _ in range(2)]
    assert nexts == [episode_of(one), episode_of(other)]


@rule("another key continues nothing", needs=[*NEEDS, "scopes"])
async def another_key(scene: Scene) -> None:
    first = await ask(scene)
    second = await ask(scene, key=scene.gateway.keys.admin, **continued(CHAT, scene, first))
    assert episode_of(second) != episode_of(first)


@rule("another tenant continues nothing", case="C45", needs=[*NEEDS, "other"])
async def another_tenant(scene: Scene) -> None:
    first = await ask(scene)
    second = await ask(scene, key=scene.gateway.keys.other, **continued(CHAT, scene, first))
    assert episode_of(second) != episode_of(first)


async def task_of(scene: Scene, answered: Answered) -> str:
    return (await scene.told(Episode("", episode_of(answered))))["task"]


@rule("the task comes from {0}", needs=NEEDS, each={"the path": "path", "the header": "header"})
async def task_is_named(scene: Scene, where: str) -> None:
    path = f"/t/{scene.tag}%20x/v1/chat/completions" if where == "path" else CHAT.path
    headers = {} if where == "path" else {"X-Hone-Task": f"{scene.tag} x"}
    first = await ask(scene, path=path, headers=headers)
    assert await task_of(scene, first) == f"{scene.tag} x"
    second = await ask(scene, path=path, headers=headers, **continued(CHAT, scene, first))
    assert episode_of(second) == episode_of(first)
    other = await ask(scene, **continued(CHAT, scene, first))
    assert episode_of(other) != episode_of(first), "another task's prefix continues nothing"


@rule("without a name the task is auto, equal for equal beginnings", needs=NEEDS)
async def auto_task(scene: Scene) -> None:
    tasks = [await task_of(scene, await ask(scene)) for _ in range(2)]
    assert tasks[0] == tasks[1]
    assert tasks[0].startswith("auto:")
    assert await task_of(scene, await ask(scene, about="else")) != tasks[0]


@rule("a configured session header joins sub-agents, within one key", needs=[*NEEDS, "session_header"])
async def session_header(scene: Scene) -> None:
    named = {str(scene.gateway.session_header): scene.tag}
    one = await ask(scene, about="parent", headers=named)
    other = await ask(scene, about="child", headers=named)
    assert episode_of(one) == episode_of(other)
    foreign = await ask(scene, about="parent", headers=named, key=scene.gateway.keys.admin)
    assert episode_of(foreign) != episode_of(one)
    another = await ask(scene, about="parent", headers={str(scene.gateway.session_header): f"{scene.tag}2"})
    assert episode_of(another) != episode_of(one)


@rule("a reward names just the answer's id, and a final one ends the episode", needs=[*NEEDS, "rewards", "groups"])
async def reward_by_id(scene: Scene) -> None:
    headers = {"X-Hone-Task": scene.tag}
    first = await ask(scene, headers=headers)
    assert (await scene.read(f"/v1/groups?task={scene.tag}"))["data"] == [], "no place before a reward"
    said = await scene.send_reward({"call_id": first.json["id"], "reward": 1, "final": True})
    assert (said.status, said.json["episode_id"]) == (201, episode_of(first)), said.raw
    (group,) = (await scene.read(f"/v1/groups?task={scene.tag}"))["data"]
    assert [member["episode_id"] for member in group["members"]] == [episode_of(first)]
    again = await ask(scene, headers=headers, **continued(CHAT, scene, first))
    assert episode_of(again) != episode_of(first), "an episode that has ended takes no call"


@rule("a retry goes to the episode of the attempt it repeats", needs=NEEDS)
async def retry(scene: Scene) -> None:
    first = await ask(scene, headers={"x-stainless-retry-count": "0"})
    second = await ask(scene, headers={"x-stainless-retry-count": "1"})
    assert episode_of(second) == episode_of(first)
    samples = await scene.samples(Episode("", episode_of(first)))
    assert (len(rows(samples)), reasons(samples)) == (1, ["superseded"])


@rule("rows of an implicit episode are the conversation's", needs=NEEDS)
async def rows_of_it(scene: Scene) -> None:
    first = await ask(scene)
    second = await ask(scene, **continued(CHAT, scene, first))
    samples = await scene.samples(Episode("", episode_of(second)))
    assert (len(samples["samples"]), samples["num_calls"], samples["excluded"]) == (1, 2, [])


@rule("previous_response_id continues the response's episode", needs=[*NEEDS, "responses"])
async def previous_response(scene: Scene) -> None:
    first = await ask(scene, RESPONSES)
    second = await ask(scene, RESPONSES, about="more", previous_response_id=first.json["id"])
    assert episode_of(second) == episode_of(first)


@rule(
    "an episode is still named where the agent can name it",
    needs=NEEDS,
    each={"header": Sibling(CHAT, "header"), "key": Sibling(CHAT, "key")},
)
async def named_wins(scene: Scene, sibling: Sibling) -> None:
    first, episode = await ask(scene), await scene.open()
    more = continued(CHAT, scene, first)
    if sibling.value == "key":
        answered = await ask(scene, key=episode.api_key, **more)
    else:
        answered = await ask(scene, headers={"X-Hone-Episode": episode.episode_id}, **more)
    assert episode_of(answered) == episode.episode_id
