"""What has happened on the stage: episodes of every kind, groups in every state, versions, steps and bills."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import msgspec

from tests.fakes.adapter_files import marked_weights
from tests.fakes.gateways import RunningGateway
from tests.fakes.scripted_engine import Answer, Received, Script, ScriptedEngine
from tracker.clock import SystemClock
from tracker.types import Scope
from trainer.config import TrainerSettings
from trainer.feed import Feed
from trainer.steps import Step
from trainer.stopping import Stop

Json = dict[str, Any]
RUN: Final = "sums"
POLICY: Final = "solver"
NUM_STEPS: Final = 4
GROUP_SIZE: Final = 4
TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks a fact up.",
            "parameters": {"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]},
        },
    }
]
LORA: Final = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}


@dataclass(slots=True)
class Told:
    """Where the stories ended up."""

    tool_episode: str = ""
    """Two policies, tools, a branch, exclusions, call rewards, a reward that was changed: everything in one."""
    open_episode: str = ""
    """Not ended, in a group that waits."""
    failed_episode: str = ""
    bill_episode: str = ""
    """With calls to a model that is no policy."""
    eval_episode: str = ""
    other_episode: str = ""
    """Of the other tenant."""
    trained_groups: list[str] = field(default_factory=list)
    skipped_group: str = ""
    open_group: str = ""
    ready_group: str = ""
    batches: list[str] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


async def tell_stories(gateway: RunningGateway, engine: ScriptedEngine) -> Told:
    """All of them; what is archived in the background is waited for."""
    told = Told()
    for request in _conversation("look it up"):
        engine.when(*request)
    await _put_run(gateway, run=RUN, group_size=GROUP_SIZE, families={"add": 1, "times": 1}, idle_s=3600)
    await _put_run(gateway, run="held-out", mode="eval")
    told.tool_episode = await _with_tools(gateway)
    told.failed_episode = (await _episode(gateway, "a task that fails", status="failed"))["episode_id"]
    told.bill_episode = await _with_a_bill(gateway)
    told.eval_episode = (await _episode(gateway, "add/held out", reward=1.0, run="held-out"))["episode_id"]
    told.other_episode = await _of_another_tenant(gateway)
    for step in range(NUM_STEPS):
        family = "add" if step % 2 == 0 else "times"
        told.trained_groups.append(await _group(gateway, f"{family}/{step}", _rewards(step)))
        await asyncio.to_thread(_train, gateway, told)
    told.skipped_group = await _group(gateway, "add/too easy", [1.0] * GROUP_SIZE)
    await asyncio.to_thread(_train, gateway, told)
    told.ready_group = await _group(gateway, "times/next", _rewards(NUM_STEPS))
    opened = await _episode(gateway, "add/still going", reward=0.5, run=RUN)
    told.open_group = opened["group_id"]
    going = await gateway.open(task="add/still going", run=RUN)
    await _call(gateway, going, "what is 2 + 2")
    told.open_episode = going["episode_id"]
    return told


def _rewards(step: int) -> list[float]:
    """Better with each step."""
    return [round(0.2 + 0.15 * step + 0.1 * place, 3) for place in range(GROUP_SIZE)]


def _conversation(words: str) -> list[tuple[Any, Script]]:
    """The rules by which the engine plays an agent's conversation with a tool."""

    def first(request: Received) -> bool:
        return words in request.raw.decode() and '"tool"' not in request.raw.decode()

    def second(request: Received) -> bool:
        return (
            words in request.raw.decode() and '"tool"' in request.raw.decode() and "again" not in request.raw.decode()
        )

    call = {"id": "call-1", "type": "function", "function": {"name": "look_up", "arguments": '{"question": "7 * 6"}'}}
    asked = Answer(
        ids=(201, 202, 203, 99),
        logprobs=(-0.1, -1.4, -0.02, -3.2),
        message={"role": "assistant", "content": None, "tool_calls": [call]},
        finish_reason="tool_calls",
    )
    answered = Answer(ids=(301, 302, 303, 304, 99), logprobs=(-0.3, -0.7, -2.1, -0.05, -0.01))
    return [
        (first, Script(prompt_ids=(1, 2, 3, 4, 5, 6), choices=(asked,))),
        (second, Script(prompt_ids=(1, 2, 3, 4, 5, 6, 201, 202, 203, 99, 7, 8), choices=(answered,))),
    ]


async def _put_run(gateway: RunningGateway, **fields: Any) -> None:
    (await gateway.admin.post("/v1/runs", json=fields)).raise_for_status()


async def _call(gateway: RunningGateway, episode: Json, text: str | list[Json], **more: Any) -> Json:
    """One call as an agent makes it; the answer's body."""
    messages = [{"role": "user", "content": text}] if isinstance(text, str) else text
    answer = await gateway.admin.post(
        "/v1/chat/completions",
        headers={"Authorization": f"Bearer {episode['api_key']}"},
        json={"model": POLICY, "messages": messages, **more},
    )
    return answer.json()


async def _reward(gateway: RunningGateway, **fields: Any) -> None:
    (await gateway.admin.post("/v1/reward", json=fields)).raise_for_status()


async def _episode(
    gateway: RunningGateway, task: str, reward: float | None = None, status: str | None = None, **fields: Any
) -> Json:
    """An episode of one call, played to its end and archived."""
    episode = await gateway.open(task=task, **fields)
    await _call(gateway, episode, f"the task is {task}, attempt {episode['episode_id'][-4:]}")
    await _end(gateway, episode["episode_id"], reward, status)
    return episode


async def _end(gateway: RunningGateway, episode_id: str, reward: float | None, status: str | None = None) -> None:
    if reward is not None:
        await _reward(gateway, episode_id=episode_id, reward=reward, source="tests")
    if status is not None:
        (await gateway.admin.post(f"/v1/episodes/{episode_id}/finish", json={"status": status})).raise_for_status()
    await gateway.until(f"/v1/episodes/{episode_id}", state="archived")


async def _with_tools(gateway: RunningGateway) -> str:
    episode = await gateway.open(task="a question with a tool", metadata={"seed": 7, "from": "the tests"})
    system = {"role": "system", "content": "Answer in one line."}
    user = {"role": "user", "content": "What is 7 * 6? look it up"}
    first = await _call(gateway, episode, [system, user], tools=TOOLS)
    message = first["choices"][0]["message"]
    tool = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "42"}
    second = await _call(gateway, episode, [system, user, message, tool], tools=TOOLS)
    checked = [{"role": "user", "content": "Is 42 right?"}]
    checker = await _call(gateway, episode, checked, model="checker", seed=1)
    await _call(gateway, episode, [{"role": "user", "content": "a fresh start"}], max_tokens=3)
    await _call(gateway, episode, [system, user, message, {**tool, "content": "43 again"}], temperature=0)
    await _reward(gateway, call_id=second["id"], reward=0.5, name="style", source="judge")
    await _reward(gateway, call_id=checker["id"], reward=1, source="judge")
    await _reward(gateway, episode_id=episode["episode_id"], reward=0.25, final=False, source="first look")
    await _end(gateway, episode["episode_id"], 1.0)
    return episode["episode_id"]


async def _with_a_bill(gateway: RunningGateway) -> str:
    episode = await gateway.open(task="asks an oracle")
    await _call(gateway, episode, "what is truth", model="oracle")
    await _call(gateway, episode, "an answer of my own")
    await _end(gateway, episode["episode_id"], 0.0)
    return episode["episode_id"]


async def _of_another_tenant(gateway: RunningGateway) -> str:
    async with await gateway.client(Scope.ADMIN, tenant="other") as other:
        episode = (await other.post("/v1/episodes", json={"task": "of another tenant"})).json()
        await _call(gateway, episode, "a secret of another tenant")
        (await other.post("/v1/reward", json={"episode_id": episode["episode_id"], "reward": 1})).raise_for_status()
        while (await other.get(f"/v1/episodes/{episode['episode_id']}")).json()["state"] != "archived":
            await asyncio.sleep(0.02)
    return episode["episode_id"]


async def _group(gateway: RunningGateway, task: str, rewards: list[float]) -> str:
    """A full round, ready for a trainer."""
    group_ids = {(await _episode(gateway, task, reward, run=RUN))["group_id"] for reward in rewards}
    (group_id,) = group_ids
    while (await _group_of(gateway, task))["state"] == "open":
        await asyncio.sleep(0.02)
    return str(group_id)


async def _group_of(gateway: RunningGateway, task: str) -> Json:
    return (await gateway.admin.get("/v1/groups", params={"run": RUN, "task": task})).json()["data"][0]


def _train(gateway: RunningGateway, told: Told) -> None:
    """One look of a trainer without a model: a step of what is ready, if that can be trained."""
    (policy,) = [each for each in gateway.settings.stores.policies if each.name == POLICY]
    key = gateway.admin.headers["authorization"].split()[1]
    settings = TrainerSettings(
        stores=gateway.settings.stores, policy=policy, gateway_url=gateway.url, key=key, poll_s=0.05
    )
    stop = Stop()
    feed = Feed(settings, SystemClock(), "trainer of the tests", stop, lambda _: stop.set())
    try:
        assert feed.acquire()
        with httpx.Client(base_url=gateway.url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as http:
            step = feed.next_step(lambda: True)
            if step is not None:
                _publish(settings, feed, http, step, told)
    finally:
        feed.close()


def _publish(settings: TrainerSettings, feed: Feed, http: httpx.Client, step: Step, told: Told) -> None:
    metrics = _metrics(step)
    reserved = feed.reserve_version(step.batch.epoch)
    weights = marked_weights(f"weights of step {step.batch.step}".encode())
    digest = hashlib.sha256(weights).hexdigest()
    name = f"{POLICY}@{reserved.version}-{digest[:8]}"
    feed.put_version(
        msgspec.structs.replace(reserved, folder=name, digest=digest, metrics=msgspec.json.encode(metrics))
    )
    folder = settings.stores.adapters_dir / name
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(LORA))
    (folder / "adapter_model.safetensors").write_bytes(weights)
    body = {"folder": name, "digest": digest, "epoch": step.batch.epoch, "metrics": metrics}
    http.post(f"/v1/policies/{POLICY}/versions", json=body).raise_for_status()
    metrics |= {"version": reserved.version, "publish_s": 0.4, "detail": "probe: weak (the digest decides)"}
    kept = json.loads(step.batch.metrics) | metrics
    trained = msgspec.structs.replace(
        step.batch, state="trained", version=reserved.version, metrics=msgspec.json.encode(kept), manifest=step.manifest
    )
    feed.mark_trained(trained)
    told.batches.append(step.batch.batch_id)
    told.versions.append(reserved.version)


def _metrics(step: Step) -> Json:
    """What a trainer tells of a step; computed ones are those of the rows, measured ones follow a plausible course."""
    number = step.batch.step
    raw = sum(len(row.prompt_ids) + len(row.sampled_ids) for row in step.rows)
    return {
        "policy": step.batch.policy,
        "step": number,
        "epoch": step.batch.epoch,
        "batch_id": step.batch.batch_id,
        "groups": step.num_groups,
        "episodes": len({row.episode_id for row in step.rows}),
        "rows": len(step.rows),
        "loss_type": step.loss,
        "trained_tokens": step.num_trained,
        "raw_tokens": raw,
        "merged_tokens": raw,
        "run_tokens": math.ceil(raw / 2),
        "distinct_tokens": math.ceil(raw / 2),
        "merge_ratio": 1.0,
        "trie_ratio": 2.0,
        "reward_mean": step.reward_mean,
        "call_reward_mean": step.call_reward_mean,
        "loss": 0.02 / (number + 1),
        "grad_norm": 0.8,
        "entropy": 1.9 - 0.1 * number,
        "kl": 0.01 * number,
        "off_policy": "token",
        "off_policy_cap": 2.0,
        "ess": 0.97,
        "capped": 0.01,
        "lag_mean": sum(step.lags) / len(step.lags),
        "lag_max": max(step.lags),
        "gap_at_no_lag": {"tokens": step.num_trained, "mean": 0.004, "max": 0.03, "ratio": 1.0},
        "gap_by_version": {},
        "families": {},
        "problem": None,
        "wait_s": 2.5,
        "train_s": 6.0,
    }
