"""Episodes that a whole gateway recorded, for tests of what is read of them later: every dialect, rewards, a tool."""

from __future__ import annotations

from typing import Any

from tests.fakes.gateways import RunningGateway

Json = dict[str, Any]
LOOK: Json = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}},
}
SYSTEM: Json = {"role": "system", "content": "Be brief."}


def bodies(number: int) -> dict[str, Json]:
    """path -> a request in each dialect; `number` makes them one of a kind."""
    said = f"question {number}"
    claude = {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {}}}
    return {
        "/v1/chat/completions": {
            "model": "solver",
            "messages": [SYSTEM, {"role": "user", "content": [{"type": "text", "text": said}]}],
            "tools": [LOOK],
        },
        "/v1/completions": {"model": "solver", "prompt": said},
        "/v1/messages": {
            "model": "solver",
            "max_tokens": 50,
            "system": "Be brief.",
            "messages": [{"role": "user", "content": said}],
            "tools": [claude],
        },
        "/v1/responses": {"model": "solver", "instructions": "Be brief.", "input": said},
    }


async def record(gateway: RunningGateway, path: str, body: Json, reward: float | None, **fields: Any) -> str:
    """One episode of one call, rewarded and archived; its id."""
    episode = await gateway.open(**fields)
    headers = {"Authorization": f"Bearer {episode['api_key']}"}
    answer = await gateway.admin.post(path, headers=headers, json=body)
    assert answer.status_code == 200, answer.text
    return await end(gateway, episode, reward)


async def converse(
    gateway: RunningGateway, messages: list[Json], turns: int, reward: float | None, **fields: Any
) -> str:
    """One episode of several calls, each going on from the answer before; its id."""
    episode = await gateway.open(**fields)
    headers = {"Authorization": f"Bearer {episode['api_key']}"}
    messages = list(messages)
    for turn in range(turns):
        body = {"model": "solver", "messages": messages}
        answer = (await gateway.admin.post("/v1/chat/completions", headers=headers, json=body)).json()
        messages += [answer["choices"][0]["message"], {"role": "user", "content": f"and then? ({turn})"}]
    return await end(gateway, episode, reward)


async def end(gateway: RunningGateway, episode: Json, reward: float | None) -> str:
    """Score it, or end it without a score, and wait for its archive."""
    episode_id = str(episode["episode_id"])
    if reward is None:
        done = await gateway.admin.post(f"/v1/episodes/{episode_id}/finish", json={"status": "ok"})
    else:
        done = await gateway.admin.post("/v1/reward", json={"episode_id": episode_id, "reward": reward})
    assert done.is_success, done.text
    await gateway.until(f"/v1/episodes/{episode_id}", state="archived")
    return episode_id
