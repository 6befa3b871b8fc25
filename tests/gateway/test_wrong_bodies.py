"""Bodies that nobody should send, at every request that takes one: refused, never a failure of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gateways import running_gateway
from tests.fakes.scripted_engine import ScriptedEngine

DEEP = b"[" * 800 + b"]" * 800
VALUES: list[bytes] = [
    *(b"null", b"true", b"0", b"-1", b"1.5", b"1" + b"0" * 30, b"-1" + b"0" * 400, b'""', b'"a/b"', b"[]", b"{}"),
    *(b'"' + b"x" * 600 + b'"', b'"\\u0000"', b'"\\ud800"', b'"\xc3\xa9\xe2\x80\xa8"', b"NaN", b"1e999", DEEP),
    *(b'{"a": ' + DEEP + b"}", b'[{"prompt_ids": [], "token_id": -1}]', b'{"points": [1], "noise": "x"}'),
]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/runs": {
        **{"run": "r", "mode": "train", "group_size": 2, "groups_per_step": 1, "credit": {}, "pin": "call"},
        **{"record": "strict", "staleness": 1, "on_stale": "wait", "group_timeout_s": 1, "reward_grace_s": 1},
        **{"idle_s": 1, "loss": "grpo", "sampling": "agent", "roles": {}, "reward_weights": {}},
    },
    "/v1/episodes": {
        **{"task": "t", "run": "default", "policy": "solver", "version": 0, "metadata": {}, "ttl_s": 60},
        "idempotency_key": "k",
    },
    "/v1/episodes/EPISODE/finish": {"status": "ok"},
    "/v1/reward": {
        **{"episode_id": "EPISODE", "call_id": "c", "reward": 1, "name": "n", "final": False, "source": "s"},
        **{"metadata": 1, "idempotency_key": "k"},
    },
    "/v1/policies": {"name": "solver", "model": "base"},
    "/v1/policies/solver/versions": {
        **{"folder": "f", "digest": "0" * 64, "epoch": 0, "metrics": {}},
        "probe": {"points": [], "noise": 0},
    },
    "/v1/policies/solver/rollback": {"version": 0},
}


def wrong_bodies(body: dict[str, Any]) -> Iterator[bytes]:
    """The body with each field in turn replaced by each value; one without it; one with a field too many."""
    for name in body:
        rest = {other: value for other, value in body.items() if other != name}
        yield json.dumps(rest).encode()
        for value in VALUES:
            inner = json.dumps(rest)[1:-1].encode()
            yield b"{" + inner + (b", " if inner else b"") + json.dumps(name).encode() + b": " + value + b"}"
    yield json.dumps({**body, "unheard_of": 1}).encode()
    yield from VALUES


@pytest.mark.slow
async def test_no_body_makes_the_gateway_fail(tmp_path: Path, redis_url: str) -> None:
    env = {"HONE_REDIS_URL": redis_url, "HONE_SWEEP_INTERVAL_S": "5", "HONE_POLL_INTERVAL_S": "5"}
    async with ScriptedEngine() as engine, running_gateway(engine, tmp_path, env) as gateway:
        episode_id = (await gateway.open())["episode_id"]
        for path, body in BODIES.items():
            for raw in wrong_bodies(body):
                sent = raw.replace(b"EPISODE", episode_id.encode())
                answer = await gateway.admin.post(path.replace("EPISODE", episode_id), content=sent)
                assert answer.status_code < 500, f"{path} {sent[:200]!r}: {answer.text}"
                if not answer.is_success:
                    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert (await gateway.chat(await gateway.open())).status_code == 200
