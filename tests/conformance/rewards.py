"""Rewards: only finite numbers, one ledger, nothing stored that was refused, late ones kept and never trained twice."""

from __future__ import annotations

import json
import math

from tests.conformance.forms import FORMS, Form, Json
from tests.conformance.rules import rule
from tests.conformance.scene import Episode, Scene

NEEDS = ("rewards", "samples")
NO_NUMBERS = [
    "NaN", "1e999", "-Infinity", '"nan"', "[1]", "{}", "Infinity", "-1e999", '"1"', '"inf"', "[]", '""',
    "1" + "0" * 400, '{"value": 1}', "-NaN", "[null]", "1e400",
]  # fmt: skip


def reward_body(target: Json, value: str) -> bytes:
    return json.dumps(target).encode()[:-1] + b', "reward": ' + value.encode() + b"}"


@rule("what is no finite number is refused and nothing is stored; 0.5 then is the only value", case="C29", needs=NEEDS)
async def no_numbers(scene: Scene) -> None:
    episode = await scene.open()
    await scene.ask(episode)
    target = {"episode_id": episode.episode_id}
    for value in NO_NUMBERS:
        answered = await scene.send_reward(reward_body(target, value))
        assert 400 <= answered.status < 500, (value, answered.status)
        assert "error" in answered.json
    assert 400 <= (await scene.send_reward(target)).status < 500
    assert ((await scene.told(episode))["reward"], (await scene.told(episode))["state"]) == (None, "open")
    await scene.reward(episode, 0.5)
    assert (await scene.told(episode))["reward"] == 0.5
    assert [reward["value"] for reward in (await scene.told(episode))["rewards"]] == [0.5]


@rule(
    "what is no finite number is a 422: {0}",
    case="C29",
    needs=NEEDS,
    each={v: v for v in ["NaN", "1e999", "-Infinity", '"nan"', "[1]"]},
)
async def not_finite_is_422(scene: Scene, value: str) -> None:
    episode = await scene.open()
    answered = await scene.send_reward(reward_body({"episode_id": episode.episode_id}, value))
    assert answered.status == 422, (answered.status, answered.raw)


@rule("a call's reward that is no number is refused too", case="C29", needs=NEEDS)
async def no_numbers_for_calls(scene: Scene) -> None:
    episode = await scene.open()
    call_id = (await scene.ask(episode)).headers["x-hone-call"]
    for value in NO_NUMBERS[:6]:
        answered = await scene.send_reward(reward_body({"call_id": call_id}, value))
        assert 400 <= answered.status < 500, value
    (sample,) = (await scene.samples(episode))["samples"]
    assert sample["spans"][0]["reward"] is None


NUMBERS = {
    "true": ("true", 1.0),
    "false": ("false", 0.0),
    "0": ("0", 0.0),
    "-0.0": ("-0.0", 0.0),
    "1e9": ("1e9", 1e9),
    "-3": ("-3", -3.0),
    "1e-320": ("1e-320", 1e-320),
}


@rule("{0} is a reward", case="C29", needs=NEEDS, each=NUMBERS)
async def numbers(scene: Scene, pair: tuple[str, float]) -> None:
    text, value = pair
    episode = await scene.open()
    answered = await scene.send_reward(reward_body({"episode_id": episode.episode_id}, text))
    assert answered.status == 201, answered.raw
    told = (await scene.told(episode))["reward"]
    assert told == value, told


@rule("null is not scored, never 0", case="C29", needs=NEEDS)
async def null_is_not_scored(scene: Scene) -> None:
    episode = await scene.open()
    answered = await scene.send_reward({"episode_id": episode.episode_id, "reward": None, "final": False})
    assert answered.status in (201, 400, 422)
    assert (await scene.told(episode))["reward"] is None
    await scene.reward(episode, 1)
    assert (await scene.told(episode))["reward"] == 1.0


@rule("a reward answers with its id and target", needs=NEEDS)
async def answer_of_a_reward(scene: Scene) -> None:
    episode = await scene.open()
    await scene.ask(episode)
    said = await scene.reward(episode, 1)
    assert set(said) == {"reward_id", "episode_id", "call_id", "late", "ended", "waiting"}
    assert (said["episode_id"], said["call_id"], said["late"], said["waiting"]) == (episode.episode_id, None, False, 0)


@rule("{0}: the answer's id alone names what is rewarded", needs=NEEDS, each=FORMS)
async def by_the_answers_id(scene: Scene, form: Form) -> None:
    episode = await scene.open()
    answered = await scene.ask(episode, form)
    said = await scene.send_reward({"call_id": answered.json["id"], "reward": 0.25})
    assert said.status == 201, said.raw
    assert (said.json["episode_id"], said.json["call_id"]) == (episode.episode_id, answered.json["id"])
    (sample,) = (await scene.samples(episode))["samples"]
    assert sample["spans"][0]["reward"] == 0.25
    assert (await scene.told(episode))["state"] == "open", "a call's reward ends no episode"


@rule("a call may be rewarded while it still streams", needs=NEEDS)
async def while_it_streams(scene: Scene) -> None:
    episode = await scene.open()
    async with scene.stream(episode) as response:
        call_id = response.headers["x-hone-call"]
        said = await scene.send_reward({"call_id": call_id, "reward": 1})
        assert said.status == 201, said.raw
        await response.read()


@rule("an episode's reward ends it, a call's does not, and final says otherwise", needs=NEEDS)
async def final(scene: Scene) -> None:
    first, second = await scene.open(), await scene.open()
    assert (await scene.reward(first, 1, final=False))["ended"] is False
    assert (await scene.told(first))["state"] == "open"
    assert (await scene.ask(first)).status == 200
    assert (await scene.reward(first, 2))["ended"] is True
    assert (await scene.ask(first)).status == 410
    call_id = (await scene.ask(second)).headers["x-hone-call"]
    assert (await scene.send_reward({"call_id": call_id, "reward": 1, "final": True})).json["ended"] is True
    assert (await scene.ask(second)).status == 410


@rule("the last value of a name counts, and names are summed", needs=NEEDS)
async def names(scene: Scene) -> None:
    episode = await scene.open()
    for name, value in (("a", 1), ("b", 0.5), ("a", 0.25)):
        await scene.reward(episode, value, name=name, final=False)
    assert (await scene.told(episode))["reward"] == 0.75
    await scene.reward(episode, None, name="b", final=False)
    assert (await scene.told(episode))["reward"] == 0.25


@rule("a run's weights weigh the names", needs=[*NEEDS, "runs"])
async def weights(scene: Scene) -> None:
    run = await scene.run(reward_weights={"style": 0.5, "cost": -1})
    episode = await scene.open(run=run)
    for name, value in (("style", 1), ("cost", 0.25), ("task", 1)):
        await scene.reward(episode, value, name=name, final=False)
    assert math.isclose((await scene.told(episode))["reward"], 1.25)


@rule("the same idempotency key and body: 200 and the same id, also at the same time", needs=NEEDS)
async def idempotent(scene: Scene) -> None:
    episode = await scene.open()
    body = {"episode_id": episode.episode_id, "reward": 1, "idempotency_key": scene.tag, "final": False}
    first = await scene.send_reward(body)
    again = await scene.send_reward(body)
    assert (first.status, again.status) == (201, 200)
    assert first.json["reward_id"] == again.json["reward_id"]
    other = await scene.send_reward({**body, "reward": 2})
    assert other.status == 409, other.raw
    assert (await scene.told(episode))["reward"] == 1.0
    assert len((await scene.told(episode))["rewards"]) == 1


UNKNOWN = {
    "an episode": {"episode_id": "ep-" + "0" * 32},
    "a call": {"call_id": "chatcmpl-" + "0" * 32 + "-" + "0" * 32},
    "a call that is none of ours": {"call_id": "chatcmpl-abc"},
}


@rule("a reward for {0} that nobody knows is a 404, and nothing is created", needs=NEEDS, each=UNKNOWN)
async def unknown_target(scene: Scene, target: Json) -> None:
    for _ in range(2):
        answered = await scene.send_reward({**target, "reward": 1})
        assert answered.status == 404, answered.raw


@rule("a call of another episode is a 404; no target a 400", needs=NEEDS)
async def wrong_target(scene: Scene) -> None:
    one, other = await scene.open(), await scene.open()
    call_id = (await scene.ask(one)).headers["x-hone-call"]
    both = await scene.send_reward({"episode_id": other.episode_id, "call_id": call_id, "reward": 1})
    assert both.status == 404, both.raw
    none = await scene.send_reward({"reward": 1})
    assert none.status == 400, none.raw
    guessed = await scene.send_reward({"call_id": call_id[:-1] + ("0" if call_id[-1] != "0" else "1"), "reward": 1})
    assert guessed.status == 404, guessed.raw


@rule("a misspelt field of a reward is refused by name", needs=NEEDS)
async def misspelt(scene: Scene) -> None:
    episode = await scene.open()
    answered = await scene.send_reward({"episode_id": episode.episode_id, "reward": 1, "finale": False})
    assert answered.status == 400
    assert "finale" in answered.json["error"]["message"]
    assert (await scene.told(episode))["reward"] is None


@rule("a reward after the end is kept, told as late where the group went on without it", needs=[*NEEDS, "groups"])
async def late(scene: Scene) -> None:
    episode = await scene.open()
    await finish(scene, episode, "cancelled")
    said = await scene.send_reward({"episode_id": episode.episode_id, "reward": 1})
    assert said.status == 201, said.raw
    assert said.json["late"] is True
    assert [reward["value"] for reward in (await scene.told(episode))["rewards"]] == [1.0]


@rule("a session key rewards nothing, not even itself", case="C45", needs=NEEDS)
async def session_key(scene: Scene) -> None:
    episode = await scene.open()
    call_id = (await scene.ask(episode)).headers["x-hone-call"]
    for target in ({"episode_id": episode.episode_id}, {"call_id": call_id}):
        answered = await scene.send_reward({**target, "reward": 1}, key=episode.api_key)
        assert answered.status == 403, answered.raw
    assert (await scene.told(episode))["rewards"] == []


@rule("a reward waits for the calls in flight and the end comes after them", needs=NEEDS)
async def waits_for_calls(scene: Scene) -> None:
    episode = await scene.open()
    async with scene.stream(episode) as response:
        said = await scene.reward(episode, 1)
        await response.read()
    assert said["ended"] is True

    async def archived() -> bool:
        return (await scene.told(episode))["state"] == "archived"

    await scene.until(archived)
    assert (await scene.samples(episode))["num_calls"] == 1


async def finish(scene: Scene, episode: Episode, status: str) -> None:
    key = scene.gateway.keys.agent
    path = f"/v1/episodes/{episode.episode_id}/finish"
    answered = await scene.gateway.send("POST", path, {"status": status}, key=key)
    assert answered.status == 200, answered.raw
