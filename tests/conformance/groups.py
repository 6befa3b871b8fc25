"""Groups: an episode counts once however many rows it gives, an unscored one not at all, and rounds fill in order."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.conformance.forms import Json
from tests.conformance.rewards import finish
from tests.conformance.rules import rule
from tests.conformance.scene import Episode, Scene, turn

NEEDS = ("groups", "rewards", "runs", "samples")
Value = float | None


async def played(scene: Scene, run: str, rewards: Sequence[Value], num_rows: Sequence[int]) -> Json:
    """A group of one task with these rewards and numbers of rows, its members in order, once all are scored."""
    episodes = [await scene.open(run=run) for _ in rewards]
    for number, (episode, reward) in enumerate(zip(episodes, rewards, strict=True)):
        for row in range(num_rows[number]):
            about = f"{number}-{row}z"
            await scene.answers(turn([100 * number + row + 1], [5, 99]), about=about)
            assert (await scene.ask(episode, about=about)).status == 200
        assert len((await scene.samples(episode))["samples"]) == num_rows[number]
        await scene.reward(episode, reward)
    return await settled(scene, run, episodes)


async def settled(scene: Scene, run: str, episodes: Sequence[Episode]) -> Json:
    """The group once all its members have ended."""

    async def ended() -> Json | None:
        group = await group_of(scene, run)
        return group if all(member["status"] for member in group["members"]) else None

    group = await scene.until(ended)
    order = {episode.episode_id: number for number, episode in enumerate(episodes)}
    return {**group, "members": sorted(group["members"], key=lambda member: order[member["episode_id"]])}


async def group_of(scene: Scene, run: str) -> Json:
    (group,) = await groups_of(scene, run)
    return group


async def groups_of(scene: Scene, run: str) -> list[Json]:
    return (await scene.read(f"/v1/groups?run={run}&task={scene.tag}"))["data"]


def advantages(group: Json) -> list[float]:
    return [member["advantage"] or 0.0 for member in group["members"]]


def assert_close(found: Sequence[float], wanted: Sequence[float]) -> None:
    assert all(math.isclose(a, b, abs_tol=2e-3) for a, b in zip(found, wanted, strict=True)), (found, wanted)


PLAIN = {"kind": "group", "std": False}


@rule("an unscored member has no weight in mean and advantages", case="C29", needs=NEEDS)
async def unscored_has_no_weight(scene: Scene) -> None:
    run = await scene.run(group_size=3, credit=PLAIN)
    group = await played(scene, run, [1, 0, None], [1, 1, 1])
    assert [member["member"] for member in group["members"]] == [True, True, False]
    assert_close(advantages(group), [0.5, -0.5, 0.0])
    assert not group["members"][2]["advantage"]


UNSCORED: dict[str, tuple[list[Value], list[float]]] = {
    "first": ([None, 1, 0], [0.0, 0.5, -0.5]),
    "two of four": ([1, None, None, 0.5], [0.25, 0.0, 0.0, -0.25]),
    "negative rewards": ([-1, None, -3], [1.0, 0.0, -1.0]),
}


@rule("unscored members: {0}", case="C29", needs=NEEDS, each=UNSCORED)
async def unscored_siblings(scene: Scene, numbers: tuple[list[Value], list[float]]) -> None:
    rewards, wanted = numbers
    run = await scene.run(group_size=len(rewards), credit=PLAIN)
    group = await played(scene, run, rewards, [1] * len(rewards))
    assert_close(advantages(group), wanted)
    assert all(member["advantage"] is None or math.isfinite(member["advantage"]) for member in group["members"])


COUNTED: dict[str, tuple[Json, list[Value], list[int], list[float]]] = {
    "3 rows of reward 1 and 2 of 0": (PLAIN, [1, 0, 0], [3, 1, 1], [2 / 3, -1 / 3, -1 / 3]),
    "1 row of reward 1 and 4 of 0": (PLAIN, [1, 0, 0], [1, 3, 1], [2 / 3, -1 / 3, -1 / 3]),
    "two long, two short": (PLAIN, [1, 0, 1, 0], [4, 4, 1, 1], [0.5, -0.5, 0.5, -0.5]),
    "four episodes, one high": (PLAIN, [3, 1, 0, 0], [2, 1, 3, 1], [2.0, 0.0, -1.0, -1.0]),
    "leave one out": ({"kind": "rloo", "std": False}, [1, 0, 0], [3, 1, 1], [1.0, -0.5, -0.5]),
}


@rule("an episode counts once in its group: {0}", case="C34", needs=NEEDS, each=COUNTED)
async def counts_once(scene: Scene, numbers: tuple[Json, list[Value], list[int], list[float]]) -> None:
    credit, rewards, num_rows, wanted = numbers
    run = await scene.run(group_size=len(rewards), credit=credit)
    assert_close(advantages(await played(scene, run, rewards, num_rows)), wanted)


@rule("divided by the standard deviation over episodes, never over rows", case="C34", needs=NEEDS)
async def scaled(scene: Scene) -> None:
    run = await scene.run(group_size=3, credit={"kind": "group", "std": True})
    found = advantages(await played(scene, run, [1, 0, 0], [3, 1, 1]))
    sample, population = [1.1547, -0.5774, -0.5774], [1.4142, -0.7071, -0.7071]
    wanted = sample if abs(found[0] - sample[0]) < abs(found[0] - population[0]) else population
    assert_close(found, wanted)


@rule("a full round opens the next", needs=NEEDS)
async def rounds_fill(scene: Scene) -> None:
    run = await scene.run(group_size=2)
    opened = [(await scene.open(run=run)).group_id for _ in range(5)]
    assert opened[0] == opened[1] != opened[2] == opened[3] != opened[4]
    groups = sorted(await groups_of(scene, run), key=lambda group: group["round"])
    assert [(len(g["members"]), g["state"], g["size"]) for g in groups] == [
        (2, "open", 2),
        (2, "open", 2),
        (1, "open", 2),
    ]


@rule("while nobody trains, nothing gets stale and rounds open without end", needs=NEEDS)
async def rounds_without_a_trainer(scene: Scene) -> None:
    run = await scene.run(group_size=2, groups_per_step=1, staleness=0)
    opened = [await scene.open(f"{scene.tag}-{number}", run=run) for number in range(6)]
    assert len({episode.group_id for episode in opened}) == 6


@rule("two tasks of a run, and two runs of a task, are groups of their own", needs=NEEDS)
async def groups_are_by_run_and_task(scene: Scene) -> None:
    first, second = await scene.run(group_size=8), await scene.run(group_size=8)
    ids = {
        (await scene.open(task, run=run)).group_id for run in (first, second) for task in (scene.tag, f"{scene.tag}-2")
    }
    assert len(ids) == 4
    assert (await scene.open(run=first)).group_id in ids


@rule(
    "an episode that ends as {0} frees its place",
    needs=NEEDS,
    each={"infra_error": "infra_error", "cancelled": "cancelled"},
)
async def freed_places(scene: Scene, status: str) -> None:
    run = await scene.run(group_size=2)
    first, second = await scene.open(run=run), await scene.open(run=run)
    await finish(scene, second, status)
    third = await scene.open(run=run)
    assert third.group_id == first.group_id
    assert (await scene.open(run=run)).group_id != first.group_id


@rule("an episode that ends as failed keeps its place", needs=NEEDS)
async def failed_keeps_its_place(scene: Scene) -> None:
    run = await scene.run(group_size=2)
    first, second = await scene.open(run=run), await scene.open(run=run)
    await finish(scene, second, "failed")
    assert (await scene.open(run=run)).group_id != first.group_id


@rule(
    "equal rewards give no advantage, and no division by zero", needs=NEEDS, each={"with std": True, "without": False}
)
async def no_variance(scene: Scene, std: bool) -> None:
    run = await scene.run(group_size=2, credit={"kind": "group", "std": std})
    assert_close(advantages(await played(scene, run, [1, 1], [1, 2])), [0.0, 0.0])


@rule("a round whose time is up with one member scored is skipped, with its reason", needs=NEEDS)
async def too_few_scored(scene: Scene) -> None:
    run = await scene.run(group_size=3, group_timeout_s=5, reward_grace_s=0)
    first, second = await scene.open(run=run), await scene.open(run=run)
    await scene.ask(first)
    await scene.reward(first, 1)
    await scene.reward(second, None)

    async def skipped() -> str | None:
        group = await group_of(scene, run)
        return group["reason"] if group["state"] == "skipped" else None

    assert await scene.until(skipped) == "too_few_scored"


@rule("a group is ready when all its members are archived and scored", needs=NEEDS)
async def ready(scene: Scene) -> None:
    run = await scene.run(group_size=2)
    first, second = await scene.open(run=run), await scene.open(run=run)
    await scene.answers(turn([1], [5, 99]))
    await scene.ask(first)
    await scene.ask(second)
    await scene.reward(first, 1)
    assert (await group_of(scene, run))["state"] == "open"
    await scene.reward(second, 0)

    async def is_ready() -> bool:
        return (await group_of(scene, run))["state"] == "ready"

    await scene.until(is_ready)


@rule("an eval run has no groups", needs=NEEDS)
async def eval_has_no_groups(scene: Scene) -> None:
    run = await scene.run(mode="eval")
    assert (await scene.open(run=run)).group_id is None
    assert await groups_of(scene, run) == []


@rule("a run's settings freeze at its first episode", needs=NEEDS)
async def runs_freeze(scene: Scene) -> None:
    run = await scene.run(group_size=2)
    key = scene.gateway.keys.admin
    assert (await scene.gateway.send("POST", "/v1/runs", {"run": run, "group_size": 3}, key=key)).status == 200
    await scene.open(run=run)
    changed = await scene.gateway.send("POST", "/v1/runs", {"run": run, "group_size": 4}, key=key)
    assert changed.status == 409, changed.raw
