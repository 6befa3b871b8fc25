"""The client: one suite for a driver that is async and for one that is not, before a gateway that is written down."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from gateway.client import AsyncHone, Attempt, Client, Hone, TimedOut
from gateway.client.episodes import status_after
from gateway.client.finding import find_access
from gateway.client.progress import Bar
from tracker.errors import (
    BadRequest,
    BudgetExceeded,
    Conflict,
    Gone,
    HoneError,
    NotFound,
    SettingsError,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    Unprocessable,
    UpstreamFailed,
)
from tracker.types import EpisodeStatus, Scope

URL = "http://gateway:8600"
Json = dict[str, Any]
Play = Callable[[Any, Any], float | None]


def refusal(status: int, code: str = "x", param: str | None = None, **headers: str) -> httpx.Response:
    error = {"message": "what is wrong", "type": "x", "param": param, "code": code}
    return httpx.Response(status, json={"error": error}, headers=headers)


class Written:
    """A gateway in memory: opens episodes, takes rewards and ends; refusals that are queued come first."""

    def __init__(self) -> None:
        self.refusals: list[httpx.Response] = []
        self.asked: list[httpx.Request] = []
        self.bodies: list[Json] = []
        self.opened: list[Json] = []
        self.rewards: list[Json] = []
        self.finished: dict[str, str] = {}
        self.active: list[int] = [3]
        """The versions that are live, one look after the other; the last one stays."""

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        body = json.loads(request.content) if request.content else {}
        if self.refusals:
            return self.refusals.pop(0)
        path = request.url.path.removeprefix("/v1")
        match request.method, path.split("/")[1:]:
            case "POST", ["episodes"]:
                return self._open(body)
            case "POST", ["episodes", episode_id, "finish"]:
                self.finished[episode_id] = body["status"]
                return httpx.Response(200, json={"episode_id": episode_id})
            case "POST", ["reward"]:
                self.rewards.append(body)
                is_end = body.get("final", "call_id" not in body)
                target = body.get("episode_id") or "ep-of-call"
                return httpx.Response(201, json={"reward_id": "rew", "episode_id": target, "ended": is_end})
            case "GET", ["runs", run]:
                return httpx.Response(200, json={"run": run, "group_size": 2, "training": {}})
            case "GET", ["policies"]:
                active = self.active.pop(0) if len(self.active) > 1 else self.active[0]
                return httpx.Response(200, json={"data": [{"policy": "solver", "active": active}]})
            case "GET", ["groups"]:
                return self._page(request)
            case _:
                return refusal(404, "not_found")

    def _open(self, body: Json) -> httpx.Response:
        self.opened.append(body)
        name = f"ep-{len(self.opened)}"
        env = {"OPENAI_BASE_URL": f"{URL}/e/{name}/v1", "OPENAI_API_KEY": f"key-{name}"}
        answer = {"episode_id": name, "api_key": f"key-{name}", "base_url": URL, "env": env, "versions": {"solver": 3}}
        return httpx.Response(201, json={**answer, "a_field_of_tomorrow": 1})

    def _page(self, request: httpx.Request) -> httpx.Response:
        number = int(request.url.params.get("cursor", "0"))
        group = {"group_id": f"g{number}", "run": "r", "task": "t", "round": number, "size": 2, "state": "open"}
        return httpx.Response(200, json={"data": [group], "next_cursor": str(number + 1) if number < 2 else None})

    def keys(self) -> list[str]:
        return [request.headers["authorization"].removeprefix("Bearer ") for request in self.asked]


class Driver:
    """A driver of either kind, driven alike."""

    def __init__(self, hone: AsyncHone | Hone) -> None:
        self.hone = hone

    async def ask(self, name: str, /, *arguments: Any, **options: Any) -> Any:
        asked = getattr(self.hone, name)
        if isinstance(self.hone, Hone):
            return await asyncio.to_thread(asked, *arguments, **options)
        return await asked(*arguments, **options)

    async def each(self, name: str, /, *arguments: Any, **options: Any) -> list[Any]:
        asked = getattr(self.hone, name)
        if isinstance(self.hone, Hone):
            return await asyncio.to_thread(lambda: list(asked(*arguments, **options)))
        return [item async for item in asked(*arguments, **options)]

    async def episode(self, task: str, play: Callable[[Any], float | None], **fields: Any) -> Any:
        """One episode, in which what `play` returns is its reward."""
        if isinstance(self.hone, AsyncHone):
            async with self.hone.episode(task, **fields) as episode:
                if (value := play(episode)) is not None:
                    await episode.reward(value)
            return episode
        hone = self.hone

        def block() -> Any:
            with hone.episode(task, **fields) as episode:
                if (value := play(episode)) is not None:
                    episode.reward(value)
            return episode

        return await asyncio.to_thread(block)

    async def rollout(self, tasks: Iterable[Any], play: Play, **options: Any) -> list[Attempt[Any]]:
        return await self.each("rollout", tasks, self.agent(play), progress=False, **options)

    def agent(self, play: Play) -> Any:
        if isinstance(self.hone, Hone):
            return play

        async def playing(episode: Any, item: Any) -> float | None:
            return await asyncio.to_thread(play, episode, item)

        return playing


@pytest.fixture
def gateway() -> Written:
    return Written()


@pytest.fixture(params=[AsyncHone, Hone], ids=["async", "blocking"])
async def driver(request: pytest.FixtureRequest, gateway: Written) -> AsyncIterator[Driver]:
    hone = request.param(URL, "k", transport=httpx.MockTransport(gateway))
    yield Driver(hone)
    await (hone.close() if isinstance(hone, AsyncHone) else asyncio.to_thread(hone.close))


async def test_an_episode_is_its_block(driver: Driver, gateway: Written) -> None:
    def play(episode: Any) -> float:
        assert episode.base_url == f"{URL}/e/ep-1/v1"
        assert episode.api_key == episode.env["OPENAI_API_KEY"] == "key-ep-1"
        return 0.5

    episode = await driver.episode("t", play, run="r", metadata={"n": 1})
    assert gateway.opened[0]["run"] == "r"
    assert gateway.opened[0]["idempotency_key"]
    assert episode.status is EpisodeStatus.OK
    [reward] = gateway.rewards
    assert (reward["episode_id"], reward["reward"]) == ("ep-1", 0.5)
    assert reward["idempotency_key"]
    assert not gateway.finished


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "ok"),
        (ValueError("no JSON"), "failed"),
        (ConnectionResetError(), "infra_error"),
        (UpstreamFailed("the engine is gone"), "infra_error"),
        (BadRequest("too long"), "failed"),
    ],
)
async def test_however_the_block_is_left_the_episode_ends(
    driver: Driver, gateway: Written, error: Exception | None, status: str
) -> None:
    def play(episode: Any) -> None:
        if error is not None:
            raise error

    if error is None:
        await driver.episode("t", play)
    else:
        with pytest.raises(type(error)):
            await driver.episode("t", play)
    assert gateway.finished == {"ep-1": status}


async def test_an_exception_goes_on_with_a_note_where_the_gateway_is_gone_too(driver: Driver, gateway: Written) -> None:
    def play(episode: Any) -> None:
        gateway.refusals = [refusal(500)]
        raise ValueError("no JSON")

    with pytest.raises(ValueError, match="no JSON") as failed:
        await driver.episode("t", play)
    assert "ep-1 could not be ended" in failed.value.__notes__[0]


async def test_an_episode_that_its_agent_has_ended_is_left_as_it_is(driver: Driver, gateway: Written) -> None:
    def play(episode: Any) -> None:
        gateway.refusals = [refusal(409, "conflict")]

    await driver.episode("t", play)
    assert not gateway.finished


async def test_a_rollout_plays_a_group_for_each_task_and_gives_what_ended(driver: Driver, gateway: Written) -> None:
    tasks = [{"id": "a", "wanted": 1.0}, {"id": "b", "wanted": 0.0}]
    attempts = await driver.rollout(tasks, lambda episode, item: item["wanted"], name=lambda item: item["id"], run="r")
    assert {(attempt.task, attempt.number, attempt.reward) for attempt in attempts} == {
        ("a", 0, 1.0),
        ("a", 1, 1.0),
        ("b", 0, 0.0),
        ("b", 1, 0.0),
    }
    assert [opened["task"] for opened in gateway.opened] == ["a", "a", "b", "b"]
    assert len({opened["idempotency_key"] for opened in gateway.opened}) == 4
    assert all(attempt.item["id"] == attempt.task and attempt.error is None for attempt in attempts)


async def test_no_more_episodes_are_played_at_a_time_than_was_said(driver: Driver) -> None:
    now, most, lock = 0, 0, threading.Lock()
    gate = threading.Barrier(3)

    def play(episode: Any, item: str) -> float:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        gate.wait(30)  # three are there at once, or this breaks
        with lock:
            now -= 1
        return 1.0

    assert len(await driver.rollout(list("abcdef"), play, group_size=1, concurrency=3)) == 6
    assert most == 3


async def test_what_an_agent_raises_is_the_end_of_its_attempt_only(driver: Driver, gateway: Written) -> None:
    def play(episode: Any, item: str) -> float:
        if item == "bad":
            raise ValueError("no JSON")
        return 1.0

    attempts = await driver.rollout(["bad", "good"], play, group_size=1)
    told = {attempt.task: attempt for attempt in attempts}
    assert (told["bad"].status, str(told["bad"].error)) == (EpisodeStatus.FAILED, "no JSON")
    assert (told["good"].status, told["good"].reward) == (EpisodeStatus.OK, 1.0)
    assert gateway.finished == {told["bad"].episode_id: "failed"}


async def test_an_attempt_that_broke_for_nobodys_doing_is_played_again(driver: Driver, gateway: Written) -> None:
    plays: list[str] = []

    def play(episode: Any, item: str) -> float:
        plays.append(item)
        if item == "gone" or len(plays) == 1:
            raise ConnectionResetError
        return 1.0

    [attempt] = await driver.rollout(["shaky"], play, group_size=1)
    assert (attempt.episode_id, attempt.reward) == ("ep-2", 1.0)
    [attempt] = await driver.rollout(["gone"], play, group_size=1, infra_retries=2)
    assert (attempt.status, plays.count("gone")) == (EpisodeStatus.INFRA_ERROR, 3)
    assert set(gateway.finished.values()) == {"infra_error"}


async def test_what_the_gateway_refuses_ends_the_rollout(driver: Driver, gateway: Written) -> None:
    gateway.refusals = [refusal(404, "not_found", "run")]
    with pytest.raises(NotFound, match="what is wrong"):
        await driver.rollout(["t"], lambda episode, item: 1.0, group_size=1)


async def test_an_opening_that_the_gateway_cannot_take_yet_is_waited_for(driver: Driver, gateway: Written) -> None:
    gateway.refusals = [refusal(429, "too_stale", **{"Retry-After": "0"}), refusal(503, **{"Retry-After": "0"})]
    [attempt] = await driver.rollout(["t"], lambda episode, item: 1.0, group_size=1)
    assert attempt.reward == 1.0
    assert len(gateway.opened) == 1


async def test_whoever_stops_listening_stops_the_rollout(driver: Driver, gateway: Written) -> None:
    held = threading.Event()

    def play(episode: Any, item: str) -> float:
        if item != "first":
            held.wait(30)
        return 1.0

    def endless() -> Iterable[str]:
        yield "first"
        while True:
            yield "more"

    attempts = driver.hone.rollout(endless(), driver.agent(play), group_size=1, concurrency=2, progress=False)
    if isinstance(attempts, AsyncIterator):
        first = await anext(attempts)
        await attempts.aclose()
    else:
        first = await asyncio.to_thread(next, attempts)
        await asyncio.to_thread(attempts.close)
    held.set()
    assert first.task == "first"
    assert set(gateway.finished.values()) == {"cancelled"}
    assert len(gateway.finished) == len(gateway.opened) - 1


async def test_an_agent_of_the_wrong_kind_is_refused(driver: Driver) -> None:
    async def coroutine(episode: Any, item: str) -> None: ...

    def function(episode: Any, item: str) -> None: ...

    wrong = coroutine if isinstance(driver.hone, Hone) else function
    with pytest.raises(TypeError, match="AsyncHone"):
        driver.hone.rollout(["t"], wrong)


async def test_a_task_that_is_no_text_needs_a_name(driver: Driver) -> None:
    with pytest.raises(TypeError, match="name"):
        await driver.rollout([{"id": 1}], lambda episode, item: 1.0, group_size=1)


async def test_one_text_is_no_list_of_tasks(driver: Driver, gateway: Written) -> None:
    with pytest.raises(TypeError, match=r"write \['Is the sky blue\?'\]"):
        await driver.rollout("Is the sky blue?", lambda episode, item: 1.0, group_size=1)
    assert gateway.opened == []


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"group_size": -1}, {"infra_retries": -1}])
async def test_a_rollout_that_cannot_be_played_is_refused(driver: Driver, wrong: Json) -> None:
    with pytest.raises(BadRequest):
        await driver.rollout(["t"], lambda episode, item: 1.0, **{"group_size": 1, **wrong})


async def test_a_reward_that_is_no_number_is_told_as_one(driver: Driver, gateway: Written) -> None:
    (attempt,) = await driver.rollout(["t"], lambda episode, item: float("nan"), group_size=1)
    assert (attempt.status, type(attempt.error)) == (EpisodeStatus.FAILED, BadRequest)
    with pytest.raises(BadRequest, match="finite number, or None"):
        await driver.ask("reward", "ep-1", float("inf"))
    assert gateway.rewards == []


async def test_tasks_may_ask_the_client_and_wait_for_what_was_played(gateway: Written) -> None:
    gateway.active = [3, 3, 4]
    taken = threading.Event()

    def tasks() -> Iterator[str]:
        yield "first"
        assert taken.wait(30)
        yield f"with version {hone.wait_for_version('solver', newer_than=3, every_s=0.01)}"

    def played() -> Iterator[str]:
        for attempt in hone.rollout(tasks(), lambda episode, item: 1.0, group_size=1, progress=False):
            taken.set()
            yield attempt.task

    with Hone(URL, "k", transport=httpx.MockTransport(gateway)) as hone:
        assert await asyncio.to_thread(lambda: list(played())) == ["first", "with version 4"]


async def test_tasks_that_fail_end_the_rollout_with_what_they_raised(driver: Driver, gateway: Written) -> None:
    def tasks() -> Iterator[str]:
        yield "t"
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        await driver.rollout(tasks(), lambda episode, item: 1.0, group_size=1)
    assert len(gateway.opened) == len(gateway.rewards) + len(gateway.finished)


@pytest.mark.parametrize("raised", [StopIteration(), SystemExit(3), KeyboardInterrupt()])
async def test_what_no_future_carries_is_the_end_of_its_attempt_too(gateway: Written, raised: BaseException) -> None:
    def play(episode: Any, item: str) -> float:
        if item == "bad":
            raise raised
        return 1.0

    with Hone(URL, "k", transport=httpx.MockTransport(gateway)) as hone:
        attempts = await Driver(hone).rollout(["bad", "good"], play, group_size=1)
    error = next(attempt.error for attempt in attempts if attempt.task == "bad")
    assert isinstance(error, RuntimeError)
    assert error.__cause__ is raised
    assert sorted(gateway.finished.values()) == ["failed"]


async def test_waiting_for_a_gateway_is_told_once(
    driver: Driver, gateway: Written, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.refusals = [refusal(503, **{"Retry-After": "0"}) for _ in range(3)]
    await driver.ask("run")
    gateway.refusals = [refusal(429, **{"Retry-After": "0"})]
    await driver.ask("run")
    told = "GET /v1/runs/default: what is wrong It is tried again for up to 60 s."
    assert [record.message for record in caplog.records if record.name == "hone.client"] == [told, told]


async def test_lists_are_read_page_after_page(driver: Driver, gateway: Written) -> None:
    groups = await driver.each("groups", run="r")
    assert [group.group_id for group in groups] == ["g0", "g1", "g2"]
    assert [request.url.params["run"] for request in gateway.asked] == ["r"] * 3


async def test_a_version_is_waited_for(driver: Driver, gateway: Written) -> None:
    gateway.active = [3, 3, 4]
    assert await driver.ask("wait_for_version", "solver", every_s=0.01) == 4
    assert await driver.ask("wait_for_version", "solver", newer_than=3) == 4
    with pytest.raises(TimedOut, match=r"after 4 within 0\.1 s"):
        await driver.ask("wait_for_version", "solver", newer_than=4, timeout_s=0.1)
    with pytest.raises(NotFound, match="there is solver"):
        await driver.ask("wait_for_version", "nobody")


async def test_every_reward_has_a_key_by_which_it_is_given_once(driver: Driver, gateway: Written) -> None:
    gateway.refusals = [refusal(503, **{"Retry-After": "0"})]
    await driver.ask("reward", "ep-1", 1.0, name="style", final=False)
    await driver.ask("reward", "ep-1", 1.0)
    await driver.ask("reward_call", "call-1", None, idempotency_key="mine")
    sent = [json.loads(request.content)["idempotency_key"] for request in gateway.asked]
    assert sent[0] == sent[1]
    assert sent[1] != sent[2]
    assert sent[3] == "mine"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refusal(400), BadRequest),
        (refusal(401), Unauthorized),
        (refusal(404), NotFound),
        (refusal(405), BadRequest),
        (refusal(409), Conflict),
        (refusal(410), Gone),
        (refusal(422), Unprocessable),
        (refusal(429, **{"Retry-After": "90"}), TooManyRequests),
        (refusal(429, "budget_exceeded"), BudgetExceeded),
        (refusal(503, **{"Retry-After": "90"}), Unavailable),
        (refusal(502), UpstreamFailed),
        (refusal(500), HoneError),
        (httpx.Response(418, text="a teapot"), BadRequest),
        (httpx.Response(200, text="<html>"), UpstreamFailed),
    ],
)
async def test_what_is_wrong_is_told_at_once_as_an_error_of_the_tree(
    driver: Driver, gateway: Written, answer: httpx.Response, kind: type[HoneError]
) -> None:
    gateway.refusals = [answer]
    with pytest.raises(HoneError, match=r"what is wrong|a teapot|no JSON") as failed:
        await driver.ask("finish", "ep")
    assert type(failed.value) is kind
    assert answer.status_code in (200, failed.value.status)
    assert len(gateway.asked) == 1


async def test_an_error_keeps_what_programs_read(gateway: Written) -> None:
    gateway.refusals = [refusal(404, "unknown_run", "run")]
    async with Client(URL, "k", transport=httpx.MockTransport(gateway)) as client:
        with pytest.raises(NotFound) as failed:
            await client.run("r")
    assert (failed.value.code, failed.value.param) == ("unknown_run", "run")
    assert failed.value.message == "GET /v1/runs/r: what is wrong"


async def test_of_a_key_of_each_kind_each_request_has_its_own(gateway: Written) -> None:
    keys = {Scope.AGENT: "a", Scope.REWARD: "r", Scope.ADMIN: "all"}
    async with Client(URL, keys, transport=httpx.MockTransport(gateway)) as client:
        await client.start_episode("t", idempotency_key="j")
        await client.reward("ep-1", 1.0)
        await client.run("r")
    assert gateway.keys() == ["a", "r", "all"]
    async with Client(URL, {Scope.AGENT: "a"}, transport=httpx.MockTransport(gateway)) as client:
        with pytest.raises(Unauthorized, match="scope reward"):
            await client.reward("ep-1", 1.0)


def test_a_client_that_is_closed_says_so_and_leaves_no_thread(gateway: Written) -> None:
    before = threading.active_count()
    with Hone(URL, "k", transport=httpx.MockTransport(gateway)) as hone:
        assert hone.run().group_size == 2
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="closed"):
        hone.run()
    hone.close()
    let_go = Hone(URL, "k", transport=httpx.MockTransport(gateway))
    del let_go
    assert threading.active_count() == before


def test_what_a_client_gave_keeps_it_open(gateway: Written) -> None:
    assert len(list(Hone(URL, "k", transport=httpx.MockTransport(gateway)).groups())) == 3
    with Hone(URL, "k", transport=httpx.MockTransport(gateway)).episode("t") as episode:
        assert episode.reward(1.0).ended
    before = threading.active_count()
    del episode
    assert threading.active_count() == before - 1


INTERRUPTED = """
import os, signal, sys, threading, time
import httpx
from gateway.client import Hone
from tests.gateway.test_client import URL, Written

gateway, playing = Written(), threading.Semaphore(0)

def agent(episode, task):
    playing.release()
    time.sleep(600)  # nobody waits for it

def interrupt():
    for _ in range(4):
        playing.acquire()
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
hone = Hone(URL, "k", transport=httpx.MockTransport(gateway))
try:
    for _ in hone.rollout(iter(str, None), agent, group_size=1, concurrency=4):
        pass
except KeyboardInterrupt:
    print(sorted(gateway.finished.values()))
"""


def test_a_rollout_that_is_interrupted_ends_its_episodes_and_then_goes_on() -> None:
    asked = [sys.executable, "-W", "error", "-X", "dev", "-c", INTERRUPTED]
    told = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2], timeout=60)
    assert told.stdout.strip() == str(["cancelled"] * 4)
    assert told.stderr == ""


def test_where_the_gateway_is_comes_from_arguments_then_the_environment_then_the_data_folder(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text('{"agent": "a", "admin": "all"}')
    env = {"HONE_BASE_URL": "https://there/v1/", "HONE_API_KEY": "k", "HONE_DATA_DIR": str(tmp_path)}
    assert find_access("http://here", "mine", None, env).base_url == "http://here"
    assert find_access("http://here", "mine", None, env).keys == "mine"
    assert find_access(None, None, None, env).base_url == "https://there"
    assert find_access(None, None, None, env).keys == "k"
    both = {Scope.AGENT: "a", Scope.ADMIN: "all"}
    assert find_access(None, None, tmp_path, env).keys == both
    del env["HONE_API_KEY"], env["HONE_BASE_URL"]
    assert find_access(None, None, None, env).keys == both
    assert find_access(None, None, None, {**env, "HONE_PORT": "8700"}).base_url == "http://127.0.0.1:8700"


def test_no_key_and_no_address_that_is_one_are_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="set HONE_API_KEY"):
        find_access(None, None, tmp_path, {})
    with pytest.raises(SettingsError, match="http://HOST:PORT"):
        find_access("gateway:8600", "k", None, {})
    assert find_access("http://here", "from a file\n", None, {}).keys == "from a file"
    with pytest.raises(SettingsError, match="is none"):
        find_access("http://here", "schlüssel", None, {})
    (tmp_path / "keys.json").write_text("[]")
    with pytest.raises(SettingsError, match="cannot be read"):
        find_access(None, None, tmp_path, {})


class APIConnectionError(Exception):
    """Named as in the packages of OpenAI and Anthropic, which the client does not load."""


class APIStatusError(Exception):
    def __init__(self, status_code: int) -> None:
        self.status_code = status_code


def _raised_from(cause: Exception) -> Exception:
    error = RuntimeError("the framework's own")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (asyncio.CancelledError(), "cancelled"),
        (KeyboardInterrupt(), "cancelled"),
        (APIConnectionError(), "infra_error"),
        (APIStatusError(503), "infra_error"),
        (APIStatusError(429), "infra_error"),
        (APIStatusError(400), "failed"),
        (httpx.ReadTimeout("slow"), "infra_error"),
        (TimeoutError(), "infra_error"),
        (_raised_from(APIConnectionError()), "infra_error"),
        (_raised_from(ValueError()), "failed"),
        (FileNotFoundError("what the model named"), "failed"),
    ],
)
def test_what_is_nobodys_doing_is_told_from_what_the_agent_did(error: BaseException, status: str) -> None:
    assert status_after(error).value == status


def test_a_bar_is_shown_at_a_terminal_and_nowhere_else() -> None:
    def shown(*, is_terminal: bool, is_wanted: bool = True) -> str:
        out = io.StringIO()
        with Bar(2, is_wanted=is_wanted, console=Console(file=out, force_terminal=is_terminal, width=100)) as bar:
            bar.tell(1.0, is_broken=False)
            bar.tell(None, is_broken=True)
        return out.getvalue()

    assert "2/2" in shown(is_terminal=True)
    assert "reward 1.00, 1 broken" in shown(is_terminal=True)
    assert shown(is_terminal=False) == shown(is_terminal=True, is_wanted=False) == ""


def test_the_client_loads_no_server_store_or_model() -> None:
    heavy = "fastapi starlette pydantic sqlalchemy alembic redis torch transformers numpy aiohttp uvicorn typer"
    asked = f"import sys, gateway.client; print([name for name in {heavy.split()} if name in sys.modules])"
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
