"""Tokens come from the engine alone: what is amiss is served, kept, shown and not trained; nothing is made up."""

from __future__ import annotations

import json

from tests.conformance.forms import CHAT, COMPLETIONS, FORMS, MESSAGES, RESPONSES, Form, Json, Sibling, across, user
from tests.conformance.rules import rule
from tests.conformance.scene import END, SEP, Scene, reasons, rows, trained, turn
from tests.fakes.scripted_answers import Answer, Script

NAN = float("nan")
AMISS: dict[str, tuple[str, Script]] = {
    "usage says 5 of 2 ids": ("ids_usage_mismatch", Script(choices=(Answer(ids=(5, 6)),), completion_tokens=5)),
    "usage says 1 of 2 ids": ("ids_usage_mismatch", Script(choices=(Answer(ids=(5, 6)),), completion_tokens=1)),
    "usage says 0": ("ids_usage_mismatch", Script(choices=(Answer(ids=(5, 6)),), completion_tokens=0)),
    "ids null": ("no_ids", Script(choices=(Answer(ids=None, texts=("a", "b"), logprobs=(-1.0, -1.0)),))),
    "ids empty": ("no_ids", Script(choices=(Answer(ids=(), texts=("a", "b"), logprobs=()),), with_usage=False)),
    "prompt ids null": ("no_prompt_ids", Script(prompt_ids=None)),
    "prompt ids empty": ("no_prompt_ids", Script(prompt_ids=())),
    "4 ids, 3 log-probabilities": (
        "ids_logprobs_mismatch",
        Script(choices=(Answer(ids=(5, 6, 7, END), logprobs=(-1.0, -1.0, -1.0)),)),
    ),
    "2 ids, 3 log-probabilities": (
        "ids_logprobs_mismatch",
        Script(choices=(Answer(ids=(5, END), logprobs=(-1.0, -1.0, -1.0)),)),
    ),
    "no log-probabilities": ("ids_logprobs_mismatch", Script(choices=(Answer(ids=(5, END), logprobs=()),))),
    "a log-probability null": ("bad_logprob", Script(choices=(Answer(ids=(5, END), logprobs=(-1.0, None)),))),
    "a log-probability NaN": ("bad_logprob", Script(choices=(Answer(ids=(5, END), logprobs=(-1.0, NAN)),))),
    "a log-probability -inf": ("bad_logprob", Script(choices=(Answer(ids=(5, END), logprobs=(float("-inf"), -1.0)),))),
    "a log-probability -9999": ("bad_logprob", Script(choices=(Answer(ids=(5, END), logprobs=(-1.0, -9999.0)),))),
}
WAYS = {
    "chat, whole": (CHAT, False),
    "chat, streamed": (CHAT, True),
    "completions, whole": (COMPLETIONS, False),
    "completions, streamed": (COMPLETIONS, True),
}


def each_amiss() -> dict[str, Sibling]:
    found = {
        f"{way}, {label}": Sibling(form, (streams, *script))
        for way, (form, streams) in WAYS.items()
        for label, script in AMISS.items()
    }
    few = {
        label: AMISS[label]
        for label in ("usage says 5 of 2 ids", "ids null", "prompt ids empty", "4 ids, 3 log-probabilities")
    }
    for form in (RESPONSES, MESSAGES):
        found |= {f"{form.name}, streamed, {k}": Sibling(form, (True, *v)) for k, v in few.items()}
    return found


@rule(
    "{0}: served, kept, shown with its reason, not trained", case="C13", needs=["samples", "rewards"], each=each_amiss()
)
async def amiss_is_not_trained(scene: Scene, sibling: Sibling) -> None:
    streams, reason, script = sibling.value
    episode = await scene.open()
    await scene.answers(script)
    answered = await scene.ask(episode, sibling.form, stream=streams)
    assert answered.status == 200, answered.raw
    assert not streams or sibling.form.has_ended(answered), answered.raw
    await scene.reward(episode, 1)
    samples = await scene.samples(episode)
    assert (trained(samples), samples["samples"], samples["num_calls"]) == ([], [], 1), samples
    assert reasons(samples) == [reason]
    told = await scene.told(episode)
    assert (told["num_calls"], told["num_excluded"]) == (1, 1)
    (call,) = await scene.calls(episode)
    assert call["reason"] == reason


@rule("the count of such calls is in the list of episodes", case="C13", needs=["samples", "rewards"])
async def operators_see_it(scene: Scene) -> None:
    episode = await scene.open()
    await scene.answers(Script(prompt_ids=None))
    for _ in range(3):
        await scene.ask(episode)
    await scene.reward(episode, 1)

    async def listed() -> Json | None:
        (found,) = (await scene.read(f"/v1/episodes?task={scene.tag}"))["data"]
        return found if found["state"] == "archived" else None

    found = await scene.until(listed)
    assert (found["num_calls"], found["num_excluded"], found["num_samples"]) == (3, 3, 0)


@rule("one choice amiss leaves the other trained", case="C13", needs=["samples"])
async def one_choice_amiss(scene: Scene) -> None:
    episode = await scene.open()
    await scene.answers(Script(choices=(Answer(ids=(5, END)), Answer(ids=(6, 7, END), logprobs=(-1.0, -2.0)))))
    await scene.ask(episode, n=2)
    samples = await scene.samples(episode)
    assert rows(samples) == [([1, 2, 5, END], [0, 0, 1, 1])]
    assert [(e["choice"], e["reason"]) for e in samples["excluded"]] == [(1, "ids_logprobs_mismatch")]


PIECES = {
    "one a piece": (1, 1, 1, 1),
    "all at once": (4,),
    "two and two": (2, 2),
    "none, then all": (0, 4),
    "three, none, one": (3, 0, 1),
}


@rule("ids that stream {0} are all captured, in order", case="C13", needs=["samples"], each=PIECES)
async def pieces_of_ids(scene: Scene, pieces: tuple[int, ...]) -> None:
    episode = await scene.open()
    await scene.answers(Script(choices=(Answer(ids=(5, 6, 7, END), logprobs=(-0.5, -1.5, -2.5, -3.5), pieces=pieces),)))
    await scene.ask(episode, stream=True)
    (sample,) = (await scene.samples(episode))["samples"]
    assert (sample["input_ids"], sample["logprobs"][2:]) == ([1, 2, 5, 6, 7, END], [-0.5, -1.5, -2.5, -3.5])


@rule("a tool parser that holds words back loses no ids", case="C13", needs=["samples"])
async def tool_deltas(scene: Scene) -> None:
    deltas: list[Json] = [
        {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]},
    ]
    episode = await scene.open()
    answer = Answer(ids=(5, 6, 7, 8, END), deltas=deltas, pieces=(4, 1), finish_reason="tool_calls")
    await scene.answers(Script(choices=(answer,)))
    answered = await scene.ask(episode, stream=True)
    assert [event["choices"][0]["delta"] for event in answered.events[1:]] == deltas
    assert rows(await scene.samples(episode)) == [([1, 2, 5, 6, 7, 8, END], [0, 0, 1, 1, 1, 1, 1])]


@rule(
    "{0}: rows hold the engine's ids and log-probabilities, nothing else",
    needs=["samples"],
    each=across(FORMS.values(), {"whole": False, "streamed": True}),
)
async def ids_are_the_engines(scene: Scene, sibling: Sibling) -> None:
    episode = await scene.open()
    await scene.answers(turn([11, 12, 13], [14, 15, END], logprobs=[-0.125, -2.0, -0.0625]))
    await scene.ask(episode, sibling.form, stream=sibling.value)
    (sample,) = (await scene.samples(episode))["samples"]
    assert (sample["input_ids"], sample["loss_mask"]) == ([11, 12, 13, 14, 15, END], [0, 0, 0, 1, 1, 1])
    assert sample["logprobs"] == [None, None, None, -0.125, -2.0, -0.0625]
    (span,) = sample["spans"]
    assert (span["start"], span["end"], span["choice"]) == (3, 6, 0)


# cut by the limit


@rule("the end token that the next prompt adds is context", case="C24", needs=["samples"])
async def added_end_is_context(scene: Scene) -> None:
    episode = await scene.open()
    await scene.converse(episode, turn([1], [5, 6], "length"), turn([1, 5, 6, END, SEP, 3], [7, END]))
    samples = await scene.samples(episode)
    assert rows(samples) == [([1, 5, 6, END, SEP, 3, 7, END], [0, 1, 1, 0, 0, 0, 1, 1])]
    (sample,) = samples["samples"]
    assert [score is not None for score in sample["logprobs"]] == [bool(mask) for mask in sample["loss_mask"]]
    assert [call["truncated"] for call in await scene.calls(episode)] == [True, False]


CUT: dict[str, tuple[Form, bool]] = {
    f"{form.name}, {'streamed' if streams else 'whole'}": (form, streams)
    for form in FORMS.values()
    for streams in (True, False)
}


@rule(
    "{0}: a single turn cut by the limit gets no end token",
    case="C24",
    needs=["samples"],
    each={k: Sibling(*v) for k, v in CUT.items()},
)
async def no_end_token_is_added(scene: Scene, sibling: Sibling) -> None:
    episode = await scene.open()
    await scene.answers(turn([1], [5, 6], "length"))
    answered = await scene.ask(episode, sibling.form, stream=sibling.value)
    assert answered.status == 200, answered.raw
    assert rows(await scene.samples(episode)) == [([1, 5, 6], [0, 1, 1])]
    assert (await scene.told(episode))["truncated"] is True


@rule("three turns in a row cut by the limit: no end token is ever trained", case="C24", needs=["samples"])
async def cut_three_times(scene: Scene) -> None:
    episode = await scene.open()
    prompts = [[1], [1, 5, 6, END, SEP, 3], [1, 5, 6, END, SEP, 3, 7, 8, END, SEP, 4]]
    await scene.converse(episode, *[turn(prompt, [5 + 2 * k, 6 + 2 * k], "length") for k, prompt in enumerate(prompts)])
    samples = await scene.samples(episode)
    assert rows(samples) == [([*prompts[2], 9, 10], [0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1])]
    assert END not in trained(samples)


@rule("a cut turn whose next prompt adds no end token goes on in the same row", case="C24", needs=["samples"])
async def cut_and_continued(scene: Scene) -> None:
    episode = await scene.open()
    await scene.converse(episode, turn([1], [5, 6], "length"), turn([1, 5, 6], [7, END]))
    assert rows(await scene.samples(episode)) == [([1, 5, 6, 7, END], [0, 1, 1, 1, 1])]


@rule("a sampled end token is trained, and only where it was sampled", case="C24", needs=["samples"])
async def sampled_end_is_trained(scene: Scene) -> None:
    episode = await scene.open()
    await scene.converse(episode, turn([1, END], [5, END]), turn([1, END, 5, END, SEP, 3], [7], "length"))
    assert rows(await scene.samples(episode)) == [([1, END, 5, END, SEP, 3, 7], [0, 0, 1, 1, 0, 0, 1])]


@rule("a tool call that used up the limit is truncated, whatever its finish reason says", case="C24", needs=["samples"])
async def truncated_tool_call(scene: Scene) -> None:
    episode = await scene.open()
    await scene.converse(episode, turn([1], [5, END]), turn([1], [5, END]))
    await scene.answers(turn([1], [5, 6], "tool_calls"), about="cut")
    await scene.ask(episode, about="cut", max_tokens=2)
    assert [call["truncated"] for call in await scene.calls(episode)] == [False, False, True]


# what cannot be trained for other reasons


@rule("an image makes a call untrainable, with its reason", needs=["samples"])
async def images(scene: Scene) -> None:
    episode = await scene.open()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    answered = await scene.ask(episode, messages=[user([{"type": "text", "text": scene.tag}, image])])
    assert answered.status == 200, answered.raw
    assert reasons(await scene.samples(episode)) == ["images"]


@rule("a failed call gives no token although it has ids", needs=["samples"])
async def failed_with_ids(scene: Scene) -> None:
    episode = await scene.open()
    await scene.answers(Script(choices=(Answer(ids=(5, 6, 7, END)),), reset_after=3))
    await scene.ask(episode, stream=True)
    samples = await scene.samples(episode)
    assert (samples["samples"], reasons(samples)) == ([], ["upstream_failed"])


@rule("calls in rows and calls excluded are all calls", needs=["samples"])
async def every_call_is_accounted_for(scene: Scene) -> None:
    episode = await scene.open()
    scripts = [
        turn([1], [5, END]),
        Script(prompt_ids=None),
        Script(status=500),
        turn([9], [8]),
        Script(choices=(Answer(ids=None),)),
    ]
    for number, script in enumerate(scripts):
        await scene.answers(script, about=f"{number}z")
        await scene.ask(episode, about=f"{number}z")
    samples = await scene.samples(episode)
    inside = {span["call_id"] for sample in samples["samples"] for span in sample["spans"]}
    outside = {excluded["call_id"] for excluded in samples["excluded"]}
    assert not inside & outside
    assert len(inside | outside) == samples["num_calls"] == 5


@rule("what the agent sent and got stands on the timeline", needs=["samples"])
async def timeline_tells_the_words(scene: Scene) -> None:
    episode = await scene.open()
    answered = await scene.ask(episode, metadata={"k": 1})
    (call,) = await scene.calls(episode)
    assert call["request"]["messages"] == [user(f"{scene.tag} hi")]
    assert call["request"]["metadata"] == {"k": 1}
    assert json.dumps(call["message"]["content"]) == json.dumps(answered.json["choices"][0]["message"]["content"])
    assert (call["finish_reason"], call["role"], call["state"]) == ("stop", "main", "completed")
