"""One episode for people: what it is, its calls as a tree, its rewards, and what is not trained and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec
from rich.console import Group as Page
from rich.console import RenderableType
from rich.text import Text
from rich.tree import Tree

from gateway.answers import plain
from gateway.conversation import text_of
from gateway.dialects.base import object_of
from gateway.message_fold import decode_json_value
from gateway.routes.views import episode_view, samples_view, timeline_view
from gateway.story import Story
from gateway.terminal import NOTHING, Rows, visible, words
from tracker.errors import Gone

HEAD: Final = (
    "run",
    "task",
    "group_id",
    "state",
    "status",
    "reward",
    "versions",
    "num_calls",
    "num_in_flight",
    "num_excluded",
    "num_truncated",
    "created_ms",
    "ended_ms",
    "removed",
)
PREVIEW: Final = 100
"""Characters of an answer that stand in the tree."""


def story_view(story: Story, amiss: str) -> dict[str, Any]:
    """Everything of an episode as one document; what can be read no more is null."""
    return {
        **episode_view(story),
        "calls_unreadable": amiss or story.shredded or None,
        "timeline": _unless_gone(timeline_view, story),
        "samples": _unless_gone(samples_view, story),
    }


def story_page(story: Story, amiss: str) -> RenderableType:
    """The same for people."""
    shown = decode_json_value(msgspec.json.encode(plain(story_view(story, amiss))))
    episode_id = story.row.head.episode_id
    parts: list[RenderableType] = [
        Text(f"episode {episode_id}", style="bold"),
        *(
            Text(f"  {name.removesuffix('_ms'):14} {told}")
            for name in HEAD
            if (told := words(shown[name], name)) != NOTHING
        ),
    ]
    if shown["calls_unreadable"]:
        parts.append(Text(f"\n{shown['calls_unreadable']}"))
    if shown["timeline"] is not None:
        parts += [Text("\nCalls", style="bold"), _tree(shown["timeline"]["calls"])]
    if shown["rewards"]:
        names = ("seq", "name", "value", "final", "late", "created_ms", "source", "call_id")
        parts += [Text("\nRewards", style="bold"), Rows(names, shown["rewards"])]
    if shown["samples"] is not None and shown["samples"]["excluded"]:
        names = ("reason", "num_tokens", "choice", "call_id")
        parts += [Text("\nNot trained", style="bold"), Rows(names, shown["samples"]["excluded"])]
    if shown["events"]:
        parts += [Text("\nEvents", style="bold"), Rows(("at_ms", "kind", "detail"), shown["events"])]
    return Page(*parts)


def _unless_gone(view: Any, story: Story) -> dict[str, Any] | None:
    try:
        return plain(view(story))
    except Gone:
        return None


def _tree(calls: list[dict[str, Any]]) -> Tree:
    """Calls below those they go on from; a line of calls stays at one depth until it forks."""
    below: defaultdict[str | None, list[dict[str, Any]]] = defaultdict(list)
    for call in calls:
        below[call["parent"]].append(call)
    root = Tree(Text("start"), hide_root=True)
    waiting = [(root, call) for call in reversed(below[None])]
    while waiting:
        at, call = waiting.pop()
        node = at.add(_call_line(call))
        children = below[call["call_id"]]
        waiting += [(at if len(children) == 1 else node, child) for child in reversed(children)]
    return root


def _call_line(call: Mapping[str, Any]) -> Text:
    whose = f"{call['policy']}@{call['version']}" if call["policy"] else call["model"]
    tokens = f"{call['num_prompt_ids']}+{sum(choice['num_sampled_ids'] for choice in call['choices'])} tokens"
    line = Text(
        visible(f"{call['call_id']}  {whose}  {call['role']}  {tokens}  {call['finish_reason'] or call['state']}")
    )
    if call["reason"]:
        line.append(f"  not trained: {call['reason']}", style="yellow")
    if said := _said(call):
        line.append(f"\n{said}", style="dim")
    return line


def _said(call: Mapping[str, Any]) -> str:
    """How an answer begins."""
    message: object = call["message"]
    if isinstance(message, str):
        return visible(message[:PREVIEW])
    said = object_of(message)
    tools = said.get("tool_calls")
    named = [object_of(object_of(tool).get("function")) for tool in cast("list[object]", tools or [])]
    called = [f"{function.get('name')}({function.get('arguments')})" for function in named]
    return visible(" ".join(filter(None, (text_of(said.get("content")), *called)))[:PREVIEW])
