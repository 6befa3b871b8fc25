"""What agents send: fields and shapes of real SDKs reach the engine as they mean, and nothing harmless is refused."""

from __future__ import annotations

from typing import Any

from tests.conformance.forms import CHAT, COMPLETIONS, FORMS, MESSAGES, RESPONSES, Form, Json, Sibling, across, user
from tests.conformance.rules import rule
from tests.conformance.scene import END, SEP, Scene, rows, turn


def parts(*texts: str, kind: str = "text") -> list[Json]:
    return [{"type": kind, "text": text} for text in texts]


def words_of(content: Any) -> str:
    """The text of a message as the engine got it, whatever shape it has."""
    if isinstance(content, str):
        return content
    assert all(part["type"] == "text" for part in content), content
    return "".join(part["text"] for part in content)


TEXTS = {
    "one, two": ("one ", "two"),
    "three parts": ("a", "b", "c"),
    "an empty part": ("one ", "", "two"),
    "lines": ("one\n", "\ntwo\n"),
    "other letters": ("é\u2028", "\U0001f600", " ß"),
    "one part": ("one two",),
}


@rule("chat, {0}: text as parts reaches the engine as text as a string does, no part lost", case="C02", each=TEXTS)
async def parts_are_text(scene: Scene, texts: tuple[str, ...]) -> None:
    joined, episode = "".join(texts), await scene.open()
    await scene.ask(episode, about="A", messages=[user(f"{scene.words('A')} {joined}")])
    first = f"{scene.words('B')} {texts[0]}"
    await scene.ask(episode, about="B", messages=[user(parts(first, *texts[1:]))])
    string = words_of((await scene.sent("A"))["messages"][-1]["content"])
    array = words_of((await scene.sent("B"))["messages"][-1]["content"])
    assert string.removeprefix(scene.words("A")) == array.removeprefix(scene.words("B")) == f" {joined}"


ROLES = {
    "system": lambda content: [{"role": "system", "content": content}, user("x")],
    "developer": lambda content: [{"role": "developer", "content": content}, user("x")],
    "assistant": lambda content: [user("x"), {"role": "assistant", "content": content}, user("y")],
    "tool": lambda content: [user("x"), TOOL_CALL, {"role": "tool", "tool_call_id": "c1", "content": content}],
}
TOOL_CALL: Json = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"b": 1,  "a": 2}'}}],
}


@rule("chat: parts of a message with role {0} lose nothing", case="C02", each=ROLES)
async def parts_of_every_role(scene: Scene, messages: Any) -> None:
    await scene.ask(await scene.open(), messages=messages(parts(f"{scene.tag} one ", "two")))
    told = [words_of(m["content"]) for m in (await scene.sent())["messages"] if "one " in str(m["content"])]
    assert told == [f"{scene.tag} one two"], told


IN_PARTS: dict[str, tuple[Form, Any]] = {
    "messages, user": (MESSAGES, lambda tag: {"messages": [user(parts(f"{tag} one ", "two"))]}),
    "messages, system": (MESSAGES, lambda tag: {"system": parts(f"{tag} one ", "two")}),
    "messages, assistant": (
        MESSAGES,
        lambda tag: {"messages": [user("x"), {"role": "assistant", "content": parts(f"{tag} one ", "two")}, user("y")]},
    ),
    "responses, user": (
        RESPONSES,
        lambda tag: {"input": [{"role": "user", "content": parts(f"{tag} one ", "two", kind="input_text")}]},
    ),
    "responses, assistant": (
        RESPONSES,
        lambda tag: {
            "input": [
                user("x"),
                {"type": "message", "role": "assistant", "content": parts(f"{tag} one ", "two", kind="output_text")},
                user("y"),
            ]
        },
    ),
}


@rule("{0}: text in parts reaches the engine whole", case="C02", each={k: Sibling(*v) for k, v in IN_PARTS.items()})
async def parts_elsewhere(scene: Scene, sibling: Sibling) -> None:
    answered = await scene.ask(await scene.open(), sibling.form, **sibling.value(scene.tag))
    assert answered.status == 200, answered.raw
    told = [words_of(m["content"]) for m in (await scene.sent())["messages"] if "one " in str(m["content"])]
    assert told == [f"{scene.tag} one two"], told


@rule(
    "rows follow reported ids when turn 1 comes back as parts: {0}",
    case="C02",
    needs=["samples"],
    each={"the ids extend": True, "the ids differ": False},
)
async def rows_of_ids_only(scene: Scene, extends: bool) -> None:
    episode = await scene.open()
    second = [1, 2, 5, END, SEP, 3] if extends else [1, 2, 6, END, SEP, 3]
    await scene.answers(turn([1, 2], [5, END]), turn(second, [7, END]))
    said = (await scene.ask(episode)).json["choices"][0]["message"]
    first = user(parts(f"{scene.tag} hi"))
    await scene.ask(episode, messages=[first, {**said, "content": parts(said["content"])}, user("more")])
    num_rows = 1 if extends else 2
    assert len(rows(await scene.samples(episode))) == num_rows


SDK: Json = {
    "store": True,
    "metadata": {"a": "b"},
    "parallel_tool_calls": True,
    "tool_choice": None,
    "max_tokens": None,
    "max_completion_tokens": 7,
    "user": "x",
}
TOOL: Json = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}


@rule(
    "{0}: what SDKs send is no error, and the limit of 7 reaches the engine",
    case="C04",
    each={"without tools": {}, "with tools": {"tools": [TOOL]}},
)
async def sdk_fields(scene: Scene, more: Json) -> None:
    message = {"role": "user", "content": f"{scene.tag} hi", "name": "n", "traceId": "t"}
    answered = await scene.ask(await scene.open(), **{**SDK, **more, "messages": [message]})
    assert answered.status == 200, answered.raw
    sent = await scene.sent()
    limits = {sent.get("max_tokens"), sent.get("max_completion_tokens")} - {None}
    assert limits == {7}, limits
    assert (sent["user"], sent["messages"][0]["content"]) == ("x", message["content"])
    assert sent.get("tool_choice", "auto") == "auto", sent
    assert sent.get("tools") == more.get("tools")


HARMLESS: dict[str, tuple[Form, Json]] = {
    "every optional field null": (
        CHAT,
        dict.fromkeys(
            ["tools", "tool_choice", "response_format", "stop", "n", "seed", "logit_bias", "stream", "stream_options",
             "functions", "function_call", "audio", "modalities", "service_tier", "logprobs", "top_logprobs", "user",
             "temperature", "top_p", "metadata", "prediction", "reasoning_effort", "web_search_options", "priority"]
        ),
    ),
    "newer OpenAI fields": (
        CHAT,
        {"reasoning_effort": "low", "verbosity": "low", "prompt_cache_key": "k", "safety_identifier": "s",
         "service_tier": "auto", "modalities": ["text"], "prompt_cache_retention": "24h"},
    ),
    "fields of other servers": (CHAT, {"litellm_trace_id": "t", "cache": {"no-cache": True}, "num_ctx": 1}),
    "cache_control on a tool": (CHAT, {"tools": [{**TOOL, "cache_control": {"type": "ephemeral"}}]}),
    "empty lists": (CHAT, {"tools": [], "stop": [], "functions": []}),
    "completions": (COMPLETIONS, {"suffix": None, "user": "x", "best_of": None, "echo": False, "x": 1}),
    "responses": (
        RESPONSES,
        {"store": True, "include": [], "truncation": "disabled", "metadata": {"a": "b"},
         "text": {"format": {"type": "text"}},
         "parallel_tool_calls": True, "service_tier": "auto", "background": False, "max_tool_calls": None, "user": "x",
         "reasoning": None, "previous_response_id": None, "instructions": None, "tools": [], "tool_choice": "auto",
         "prompt_cache_key": "k", "safety_identifier": "s", "traceId": "t"},
    ),
    "messages": (
        MESSAGES,
        {"metadata": {"user_id": "u"}, "stop_sequences": [], "thinking": {"type": "disabled"}, "service_tier": "auto",
         "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}], "traceId": "t",
         "temperature": 1, "top_k": None, "tool_choice": None},
    ),
}  # fmt: skip


@rule("harmless fields are no error: {0}", case="C04", each={k: Sibling(*v) for k, v in HARMLESS.items()})
async def harmless_fields(scene: Scene, sibling: Sibling) -> None:
    answered = await scene.ask(await scene.open(), sibling.form, **sibling.value)
    assert answered.status == 200, answered.raw
    sent = await scene.sent()
    nulls = [name for name, value in sent.items() if value is None]
    assert not nulls, f"the engine got nulls: {nulls}"


MESSAGES_OF_SDKS = {
    "an assistant's nulls": {
        "role": "assistant",
        "content": "x",
        "refusal": None,
        "tool_calls": None,
        "audio": None,
        "function_call": None,
    },
    "annotations": {"role": "assistant", "content": "x", "annotations": [], "reasoning": "r", "reasoning_content": "r"},
    "cache_control on a part": {
        "role": "user",
        "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
    },
    "an id and a name": {"role": "user", "content": "x", "id": "m1", "name": "n", "metadata": {"k": 1}},
}


@rule("messages with fields nobody defines are no error: {0}", case="C04", each=MESSAGES_OF_SDKS)
async def odd_messages(scene: Scene, message: Json) -> None:
    answered = await scene.ask(await scene.open(), messages=[user(f"{scene.tag} hi"), message, user("y")])
    assert answered.status == 200, answered.raw


LIMITS: dict[str, tuple[Form, Json]] = {
    "chat, max_tokens": (CHAT, {"max_tokens": 7}),
    "chat, max_completion_tokens": (CHAT, {"max_completion_tokens": 7}),
    "chat, both: the newer one": (CHAT, {"max_completion_tokens": 7, "max_tokens": 900}),
    "completions": (COMPLETIONS, {"max_tokens": 7}),
    "responses": (RESPONSES, {"max_output_tokens": 7}),
    "messages": (MESSAGES, {"max_tokens": 7}),
}


@rule("the output limit reaches the engine: {0}", case="C04", each={k: Sibling(*v) for k, v in LIMITS.items()})
async def limit_reaches_engine(scene: Scene, sibling: Sibling) -> None:
    await scene.ask(await scene.open(), sibling.form, **sibling.value)
    sent = await scene.sent()
    assert {sent.get("max_tokens"), sent.get("max_completion_tokens")} - {None} == {7}, sent


@rule(
    "the agent's stop, seed and user stand; ids and log-probabilities are the gateway's", case="C04", needs=["samples"]
)
async def own_values_win(scene: Scene) -> None:
    episode = await scene.open()
    answered = await scene.ask(episode, stop=["\n", "END"], seed=7, user="u", logprobs=False, return_token_ids=False)
    sent = await scene.sent()
    assert (sent["stop"], sent["seed"], sent["user"]) == (["\n", "END"], 7, "u")
    assert (sent["return_token_ids"], sent["logprobs"]) == (True, True)
    assert "token_ids" not in answered.json["choices"][0]
    assert (await scene.samples(episode))["excluded"] == []


@rule(
    "stop sequences reach the engine: {0}", each=across([MESSAGES], {"stop_sequences": {"stop_sequences": ["X", "Y"]}})
)
async def stop_sequences(scene: Scene, sibling: Sibling) -> None:
    await scene.ask(await scene.open(), sibling.form, **sibling.value)
    assert (await scene.sent())["stop"] == ["X", "Y"]


POSITIONS = {"first": 0, "in the middle": 1, "last": 2}


@rule("role developer reaches the engine as system, in place: {0}", each=POSITIONS)
async def developer_is_system(scene: Scene, at: int) -> None:
    messages: list[Json] = [user(f"{scene.tag} a"), user("developer")]
    messages.insert(at, {"role": "developer", "content": "be brief", "name": "d"})
    await scene.ask(await scene.open(), messages=messages)
    wanted = [*messages]
    wanted[at] = {**messages[at], "role": "system"}
    assert (await scene.sent())["messages"] == wanted


@rule(
    "{0}: the system prompt reaches the engine first, as system",
    each={
        "responses": Sibling(RESPONSES, {"instructions": "be brief"}),
        "messages": Sibling(MESSAGES, {"system": "be brief"}),
    },
)
async def system_prompt(scene: Scene, sibling: Sibling) -> None:
    await scene.ask(await scene.open(), sibling.form, **sibling.value)
    messages = (await scene.sent())["messages"]
    assert (messages[0]["role"], words_of(messages[0]["content"])) == ("system", "be brief")
    assert [m["role"] for m in messages] == ["system", "user"]


@rule("the conversation is not rewritten: order, spaces, tool arguments")
async def conversation_is_kept(scene: Scene) -> None:
    messages = [
        user(f"{scene.tag}  two  spaces\n"),
        TOOL_CALL,
        {"role": "tool", "tool_call_id": "c1", "content": ""},
        user(""),
    ]
    await scene.ask(await scene.open(), messages=messages)
    assert (await scene.sent())["messages"] == messages


@rule("{0}: the engine is asked on completion routes only, with ids and log-probabilities", each=FORMS)
async def engine_is_asked_for_tokens(scene: Scene, form: Form) -> None:
    await scene.ask(await scene.open(), form)
    (received,) = await scene.received()
    assert received.path in ("/v1/chat/completions", "/v1/completions")
    assert received.body["return_token_ids"] is True
    assert received.body["logprobs"] not in (None, False)
