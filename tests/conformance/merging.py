"""Calls fold into as few rows as their tokens allow, each sampled token trained once, whatever order they finish in."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from itertools import permutations

from tests.conformance.forms import CHAT, FORMS, Form, Json
from tests.conformance.rules import rule
from tests.conformance.scene import END, SEP, Episode, Scene, rows, trained, turn
from tests.fakes.scripted_answers import Answer, Script

Turns = dict[str, Script]

FIELD: Turns = {
    "A1": turn([1, 2], [3, END]),
    "B1": turn([7, 8], [4, END]),
    "A2": turn([1, 2, 3, END, SEP, 5], [6, END]),
    "B2": turn([7, 8, 4, END, SEP, 9], [3, END]),
}
FIELD_ROWS = [
    ([1, 2, 3, END, SEP, 5, 6, END], [0, 0, 1, 1, 0, 0, 1, 1]),
    ([7, 8, 4, END, SEP, 9, 3, END], [0, 0, 1, 1, 0, 0, 1, 1]),
]
SHARED: Turns = {
    "A1": turn([1, 2, 30], [3, END]),
    "B1": turn([1, 2, 40], [3, END]),
    "C1": turn([1, 2], [30, END]),
    "A2": turn([1, 2, 30, 3, END, SEP], [6, END]),
    "B2": turn([1, 2, 40, 3, END, SEP], [6, END]),
}
SHARED_ROWS = [
    ([1, 2, 30, 3, END, SEP, 6, END], [0, 0, 0, 1, 1, 0, 1, 1]),
    ([1, 2, 30, END], [0, 0, 1, 1]),
    ([1, 2, 40, 3, END, SEP, 6, END], [0, 0, 0, 1, 1, 0, 1, 1]),
]
DEEP: Turns = {
    "A1": turn([1], [2, END]),
    "A2": turn([1, 2, END, 3], [4, END]),
    "B1": turn([1, 2, END, 5], [6, END]),
    "A3": turn([1, 2, END, 3, 4, END, 7], [8, END]),
    "B2": turn([1, 2, END, 5, 6, END, 9], [10, END]),
}
DEEP_ROWS_TRAINED = [2, 4, 6, 8, 10, END, END, END, END, END]
TEAMS = {"the field's": (FIELD, FIELD_ROWS), "with a shared head": (SHARED, sorted(SHARED_ROWS))}


@rule("{0} sub-agents in turn: one row each", case="C15", needs=["samples", "rewards"], each=TEAMS)
async def in_turn(scene: Scene, team: tuple[Turns, list[tuple[list[int], list[int]]]]) -> None:
    turns, wanted = team
    episode = await scene.open()
    for name, script in turns.items():
        await ask(scene, episode, name, script)
    await scene.reward(episode, 1)
    samples = await scene.samples(episode)
    assert rows(samples) == wanted, rows(samples)
    assert samples["excluded"] == []


ORDERS = {
    "as they came": (0, 1, 2, 3),
    "in reverse": (3, 2, 1, 0),
    "B first": (1, 3, 0, 2),
    "the second turns first": (2, 3, 1, 0),
}


@rule(
    "sub-agents in parallel that finish {0}: the same two rows", case="C15", needs=["samples", "rewards"], each=ORDERS
)
async def in_parallel(scene: Scene, order: tuple[int, ...]) -> None:
    episode = await scene.open()
    names = list(FIELD)
    for name, script in FIELD.items():
        await scene.answers(script, about=f"{name}z", gate=name)
    asking = [
        asyncio.create_task(scene.ask(episode, about=f"{name}z", stream=k % 2 == 0)) for k, name in enumerate(names)
    ]

    async def all_there() -> bool:
        return len(await scene.received()) == len(names)

    await scene.until(all_there)
    for position in order:
        await scene.release(names[position])
        await asking[position]
    assert all(task.result().status == 200 for task in asking)
    await scene.reward(episode, 1)
    samples = await scene.samples(episode)
    assert rows(samples) == FIELD_ROWS, rows(samples)
    assert len(trained(samples)) == 8


@rule("every order of arrival gives the same rows", case="C15", needs=["samples"], timeout_s=40)
async def every_order(scene: Scene) -> None:
    async def of(order: tuple[str, ...]) -> list[tuple[list[int], list[int]]]:
        episode = await scene.open()
        mark = "".join(order)
        for name in order:
            await ask(scene, episode, f"{mark}-{name}", FIELD[name])
        return rows(await scene.samples(episode))

    for order in list(permutations(FIELD))[::3]:
        assert await of(order) == FIELD_ROWS, order


@rule("a child that forks from its parent's history shares it as context", case="C15", needs=["samples"])
async def forks(scene: Scene) -> None:
    episode = await scene.open()
    for name, script in DEEP.items():
        await ask(scene, episode, name, script)
    samples = await scene.samples(episode)
    assert len(samples["samples"]) == 2
    assert sorted(trained(samples)) == DEEP_ROWS_TRAINED
    await assert_laws(scene, episode, DEEP.values())


@rule("{0}: turns of every dialect extend one row", case="C15", needs=["samples"], each=FORMS)
async def across_dialects(scene: Scene, form: Form) -> None:
    episode = await scene.open()
    await ask(scene, episode, "first", turn([1, 2], [3, END]), CHAT)
    await ask(scene, episode, "second", turn([1, 2, 3, END, SEP, 5], [6, END]), form)
    assert rows(await scene.samples(episode)) == [FIELD_ROWS[0]]


# the next prompt re-tokenises


@rule("a history that re-tokenised starts a new row, nothing is thrown away", case="C16", needs=["samples"])
async def retokenised(scene: Scene) -> None:
    episode = await scene.open()
    await scene.converse(
        episode,
        turn([10, 11], [20, 21, END], logprobs=[-0.1, -0.2, -0.3]),
        turn([10, 11, 22, END, SEP, 30], [40, END], logprobs=[-0.4, -0.5]),
    )
    samples = await scene.samples(episode)
    assert rows(samples) == [
        ([10, 11, 20, 21, END], [0, 0, 1, 1, 1]),
        ([10, 11, 22, END, SEP, 30, 40, END], [0, 0, 0, 0, 0, 0, 1, 1]),
    ]
    by_ids = {tuple(s["input_ids"]): s["logprobs"] for s in samples["samples"]}
    assert by_ids[10, 11, 20, 21, END] == [None, None, -0.1, -0.2, -0.3]
    assert samples["excluded"] == []
    assert 22 not in trained(samples)


DRIFTS = {
    "at the first sampled id": [1, 9, 6, END],
    "in the middle": [1, 5, 9, END],
    "at the end token": [1, 5, 6, 9],
    "one id short": [1, 5, 6],
    "in the prompt": [9, 5, 6, END],
    "one id more": [1, 5, 6, 9, END],
    "merged": [1, 56, END],
}


@rule(
    "a prompt that differs {0} is a new row with what is shared as context", case="C16", needs=["samples"], each=DRIFTS
)
async def drifts(scene: Scene, history: list[int]) -> None:
    episode = await scene.open()
    turns = [turn([1], [5, 6, END]), turn([*history, SEP, 3], [7, END])]
    await scene.converse(episode, *turns)
    samples = await scene.samples(episode)
    assert rows(samples) == sorted(
        [([1, 5, 6, END], [0, 1, 1, 1]), ([*history, SEP, 3, 7, END], [0] * (len(history) + 2) + [1, 1])]
    )
    assert (samples["excluded"], (await scene.told(episode))["num_samples"]) == ([], 2)
    await assert_laws(scene, episode, turns)


@rule("the words of a message play no part: equal words, other ids", case="C16", needs=["samples"])
async def words_play_no_part(scene: Scene) -> None:
    episode = await scene.open()
    answer = Answer(ids=(5, END), texts=("same", ""))
    await scene.answers(
        Script(prompt_ids=(1,), choices=(answer,)), Script(prompt_ids=(2, 5, END, 3), choices=(answer,))
    )
    first = (await scene.ask(episode)).json["choices"][0]["message"]
    question = {"role": "user", "content": f"{scene.tag} hi"}
    await scene.ask(episode, messages=[question, first, question])
    assert len(rows(await scene.samples(episode))) == 2


# choices and equal samples


@rule("{0} choices of one call are as many leaves, each trained once", needs=["samples"], each={"2": 2, "3": 3, "8": 8})
async def choices_are_leaves(scene: Scene, number: int) -> None:
    episode = await scene.open()
    await scene.answers(Script(prompt_ids=(1,), choices=tuple(Answer(ids=(5 + k, END)) for k in range(number))))
    await scene.ask(episode, n=number)
    samples = await scene.samples(episode)
    assert rows(samples) == sorted(([1, 5 + k, END], [0, 1, 1]) for k in range(number))


@rule("equal choices stay apart, each trained once", needs=["samples"])
async def equal_choices(scene: Scene) -> None:
    episode = await scene.open()
    await scene.answers(Script(prompt_ids=(1,), choices=(Answer(ids=(5, END)), Answer(ids=(5, END)))))
    await scene.ask(episode, n=2, stream=True)
    assert rows(await scene.samples(episode)) == [([1, 5, END], [0, 1, 1])] * 2


@rule("a turn goes on from one of two choices, the other stays a leaf", needs=["samples"])
async def goes_on_from_a_choice(scene: Scene) -> None:
    episode = await scene.open()
    both = Script(prompt_ids=(1,), choices=(Answer(ids=(5, END)), Answer(ids=(6, END))))
    await scene.answers(both, about="first")
    await scene.ask(episode, about="first", n=2)
    await ask(scene, episode, "second", turn([1, 6, END, SEP], [7]))
    assert rows(await scene.samples(episode)) == [([1, 5, END], [0, 1, 1]), ([1, 6, END, SEP, 7], [0, 1, 1, 0, 1])]


@rule(
    "random conversations keep the laws: each sampled token once, under its own context",
    needs=["samples"],
    timeout_s=40,
    each={"first": 1, "second": 2, "third": 3},
)
async def random_conversations(scene: Scene, seed: int) -> None:
    source = random.Random(seed)
    episode = await scene.open()
    done: list[Script] = []
    for number in range(14):
        head = [source.randint(1, 2)]
        if done and source.random() < 0.8:
            before = source.choice(done)
            ids = [*(before.prompt_ids or ()), *(before.choices[0].ids or ())]
            head = ids[: source.choice([len(ids), len(ids), source.randint(1, len(ids))])]
        prompt = [*head, *[source.randint(1, 3) for _ in range(source.randint(0, 2))]]
        script = turn(prompt, [source.randint(1, 3) for _ in range(source.randint(1, 3))])
        await ask(scene, episode, f"random{number}z", script)
        done.append(script)
    await assert_laws(scene, episode, done)


async def ask(scene: Scene, episode: Episode, name: str, script: Script, form: Form = CHAT) -> None:
    await scene.answers(script, about=f"{name}z")
    answered = await scene.ask(episode, form, f"{name}z")
    assert answered.status == 200, answered.raw


async def assert_laws(scene: Scene, episode: Episode, turns: object) -> None:
    """Every call is trained in exactly one place, under exactly the prompt that the engine reported."""
    samples = await scene.samples(episode)
    assert samples["excluded"] == []
    found: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
    num_masked = 0
    for sample in samples["samples"]:
        num_masked += sum(sample["loss_mask"])
        for span in sample["spans"]:
            found[context_of(sample, span)] += 1
    wanted = Counter((tuple(one.prompt_ids), tuple(one.choices[0].ids)) for one in turns)  # type: ignore[attr-defined]
    assert found == wanted, found - wanted or wanted - found
    assert num_masked == sum(len(ids) for _, ids in wanted.elements()), "a token is trained twice or not at all"


def context_of(sample: Json, span: Json) -> tuple[tuple[int, ...], tuple[int, ...]]:
    start, end = span["start"], span["end"]
    assert sample["loss_mask"][start:end] == [1] * (end - start)
    assert None not in sample["logprobs"][start:end]
    return tuple(sample["input_ids"][:start]), tuple(sample["input_ids"][start:end])
