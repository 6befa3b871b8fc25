"""Sampling: the policy's settings stand over the agent's on trained calls; what cannot be recomputed is excluded."""

from __future__ import annotations

from typing import Any

from tests.conformance.forms import CHAT, COMPLETIONS, FORMS, MESSAGES, RESPONSES, Form, Json, Sibling, across
from tests.conformance.rules import rule
from tests.conformance.scene import Scene, reasons, rows

NEEDS = ("runs", "samples")
NEUTRAL = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
AGENTS_OWN: dict[str, Json] = {
    "chat": {
        "temperature": 0.3,
        "top_p": 0.5,
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": 1,
        "repetition_penalty": 2,
        "logit_bias": {"5": 3},
        "min_tokens": 3,
        "bad_words": ["x"],
    },
    "completions": {"temperature": 0.3, "top_p": 0.5, "presence_penalty": 1, "logit_bias": {"5": 3}},
    "responses": {"temperature": 0.3, "top_p": 0.5},
    "messages": {"temperature": 0.3, "top_p": 0.5, "top_k": 5},
}


@rule(
    "{0}: the policy's sampling reaches the engine, written out, and the agent's stands on the call",
    needs=NEEDS,
    each=FORMS,
)
async def overridden(scene: Scene, form: Form) -> None:
    episode = await scene.open()
    answered = await scene.ask(episode, form, **AGENTS_OWN[form.name])
    assert answered.status == 200, answered.raw
    sent = await scene.sent()
    assert {name: sent.get(name) for name in NEUTRAL} == NEUTRAL
    assert not {"logit_bias", "min_tokens", "bad_words"} & set(sent)
    (call,) = await scene.calls(episode)
    assert call["request"]["temperature"] == 0.3
    assert call["sampling"].get("temperature", 1.0) == 1.0
    assert (await scene.samples(episode))["excluded"] == []


@rule("{0}: an eval run honours the agent's sampling", needs=NEEDS, each=FORMS)
async def eval_honours(scene: Scene, form: Form) -> None:
    episode = await scene.open(run=await scene.run(mode="eval"))
    await scene.ask(episode, form, temperature=0.25, top_p=0.5)
    sent = await scene.sent()
    assert (sent["temperature"], sent["top_p"]) == (0.25, 0.5)


TRUNCATED: dict[str, Json] = {
    "temperature 0": {"temperature": 0}, "top_p": {"top_p": 0.9}, "top_k": {"top_k": 5}, "min_p": {"min_p": 0.1},
    "a presence penalty": {"presence_penalty": 0.5}, "a frequency penalty": {"frequency_penalty": 0.5},
    "a repetition penalty": {"repetition_penalty": 1.1}, "logit_bias": {"logit_bias": {"5": 1}},
    "min_tokens": {"min_tokens": 2}, "bad_words": {"bad_words": ["x"]},
}  # fmt: skip


@rule("sampling: agent honours {0} and excludes the call", needs=NEEDS, each=TRUNCATED)
async def agents_distribution(scene: Scene, fields: Json) -> None:
    episode = await scene.open(run=await scene.run(sampling="agent"))
    await scene.ask(episode, **fields)
    assert fields.items() <= (await scene.sent()).items()
    assert reasons(await scene.samples(episode)) == ["not_policy_distribution"]


@rule("sampling: agent trains a call at another temperature", needs=NEEDS)
async def agents_temperature(scene: Scene) -> None:
    episode = await scene.open(run=await scene.run(sampling="agent"))
    await scene.ask(episode, temperature=0.5)
    assert (await scene.sent())["temperature"] == 0.5
    samples = await scene.samples(episode)
    assert (len(rows(samples)), samples["excluded"]) == (1, [])


TOOLS: list[Json] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
SCHEMA: Json = {"name": "a", "schema": {"type": "object", "properties": {"base_url": {"type": "string"}}}}
CONSTRAINED: dict[str, tuple[Form, Json]] = {
    "chat, json_object": (CHAT, {"response_format": {"type": "json_object"}}),
    "chat, json_schema": (CHAT, {"response_format": {"type": "json_schema", "json_schema": SCHEMA}}),
    "chat, tool_choice required": (CHAT, {"tools": TOOLS, "tool_choice": "required"}),
    "chat, a named tool": (CHAT, {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}),
    "chat, guided_regex": (CHAT, {"guided_regex": "a+"}),
    "completions, guided_choice": (COMPLETIONS, {"guided_choice": ["a", "b"]}),
    "responses, text.format": (RESPONSES, {"text": {"format": {"type": "json_schema", **SCHEMA}}}),
    "messages, tool_choice any": (
        MESSAGES,
        {"tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "any"}},
    ),
}


@rule(
    "structured output is honoured, then excluded: {0}",
    needs=NEEDS,
    each={k: Sibling(*v) for k, v in CONSTRAINED.items()},
)
async def constrained(scene: Scene, sibling: Sibling) -> None:
    episode = await scene.open()
    answered = await scene.ask(episode, sibling.form, **sibling.value)
    assert answered.status == 200, answered.raw
    sent = await scene.sent()
    assert any(
        sent.get(name) not in (None, "auto")
        for name in ("response_format", "tool_choice", "guided_regex", "guided_choice")
    ), sent
    assert reasons(await scene.samples(episode)) == ["not_policy_distribution"]


@rule("constrained: train keeps structured output", needs=NEEDS)
async def constrained_train(scene: Scene) -> None:
    episode = await scene.open(run=await scene.run(constrained="train"))
    await scene.ask(episode, response_format={"type": "json_object"})
    assert (await scene.samples(episode))["excluded"] == []


FREE: dict[str, Any] = {
    "text": {"response_format": {"type": "text"}},
    "auto": {"tools": TOOLS, "tool_choice": "auto"},
    "none": {"tools": TOOLS, "tool_choice": "none"},
}


@rule("what shapes nothing is trained: {0}", needs=NEEDS, each=across([CHAT], FREE))
async def unconstrained(scene: Scene, sibling: Sibling) -> None:
    episode = await scene.open()
    await scene.ask(episode, **sibling.value)
    assert (await scene.samples(episode))["excluded"] == []


ROLES = {"train": [], "context": ["role"], "drop": ["role"]}


@rule("a run says what becomes of a role: {0}", needs=NEEDS, each={name: (name, why) for name, why in ROLES.items()})
async def roles(scene: Scene, pair: tuple[str, list[str]]) -> None:
    said, why = pair
    episode = await scene.open(run=await scene.run(roles={"helper": said}))
    await scene.ask(episode, headers={"X-Hone-Role": "helper"})
    samples = await scene.samples(episode)
    assert reasons(samples) == why
    assert [call["role"] for call in await scene.calls(episode)] == ["helper"]


@rule("titles are never trained by default", needs=NEEDS)
async def titles(scene: Scene) -> None:
    episode = await scene.open()
    await scene.ask(episode, headers={"X-Hone-Role": "title"})
    assert reasons(await scene.samples(episode)) == ["role"]
