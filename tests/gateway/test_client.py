"""The client waits for a gateway that waits for the trainer, and for nothing else for long."""

from __future__ import annotations

import httpx
import pytest

from gateway.client import Client, RequestFailed


def refusal(status: int, code: str, **headers: str) -> httpx.Response:
    error = {"message": "what is wrong", "type": "x", "param": None, "code": code}
    return httpx.Response(status, json={"error": error}, headers=headers)


class Answers:
    """Given one after the other; notes how often it was asked."""

    def __init__(self, *answers: httpx.Response) -> None:
        self.answers = list(answers)
        self.keys: list[str] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.keys.append(request.headers["authorization"])
        return self.answers.pop(0)

    def client(self) -> Client:
        return Client("http://gateway", "k", transport=httpx.MockTransport(self))


async def test_an_opening_that_would_be_too_stale_is_asked_for_again_after_the_time_it_was_told() -> None:
    answers = Answers(refusal(429, "too_stale", **{"Retry-After": "0"}), httpx.Response(201, json={"episode_id": "ep"}))
    async with answers.client() as client:
        assert (await client.start_episode("t", idempotency_key="j"))["episode_id"] == "ep"
    assert answers.keys == ["Bearer k"] * 2


@pytest.mark.parametrize("status", [400, 404, 409, 502])
async def test_what_is_wrong_is_told_at_once(status: int) -> None:
    answers = Answers(refusal(status, "x"))
    async with answers.client() as client:
        with pytest.raises(RequestFailed, match="what is wrong") as failed:
            await client.finish("ep", "ok")
    assert failed.value.status == status
