"""Whatever is stored is text: markup, scripts, links and templates in every field, in a browser, on every page.

The pages are found as a reader finds them, by following links from the navigation; a new page is looked at as soon as
anything links to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec
import pytest
from playwright.sync_api import Browser, Dialog, Page, Request

from tests.dashboard.conftest import overflows, sign_in
from tests.dashboard.stage import Stage, staged
from tests.dashboard.stories import Told
from tests.fakes.gateways import RunningGateway
from tests.fakes.scripted_engine import ScriptedEngine
from tracker.archive import packed
from tracker.clock import SystemClock
from tracker.ledger import SqlLedger
from tracker.store import EpisodeView
from tracker.types import (
    Act,
    Batch,
    Call,
    CallCredit,
    CallState,
    Choice,
    EpisodeHead,
    EpisodeState,
    EpisodeStatus,
    Event,
    Key,
    Reason,
    Reward,
    RunSettings,
    Scope,
)

pytestmark = pytest.mark.slow
MARKUP = (
    "<img src=x onerror=\"window.ran='{name}';fetch('http://elsewhere.invalid/')\"> "
    "</script><script>window.ran='{name}'</script> \"'><svg/onload=window.ran='{name}'> "
    "' onfocus=window.ran=1 autofocus x=' <a href=\"javascript:window.ran=1\">here</a> "
    "javascript:window.ran=1 http://elsewhere.invalid/ {{{{7*7}}}} {{% raise %}} <!-- \u202eesrever\u2066"
)
HARMLESS = "mark-{name}-mark"
MAX_PAGES = 150
FORBIDDEN = """() => [
    ...document.querySelectorAll("img, iframe, object, embed, base, form[action^='http'], style, [style]"),
    ...document.querySelectorAll("script:not([src^='/dashboard/static/'])"),
    ...[...document.querySelectorAll("*")].filter((e) => e.getAttributeNames().some((n) => n.startsWith("on"))),
    ...[...document.querySelectorAll("[href], [action]")].filter((e) => {
        const to = e.getAttribute("href") ?? e.getAttribute("action");
        return !(to.startsWith("/dashboard") || to.startsWith("?") || to.startsWith("#"));
    }),
].map((e) => e.outerHTML.slice(0, 200))"""


def nasty(name: str, *, chars: int | None = None, nul: bool = True) -> str:
    """A text that would do harm in some place or other; its name says where it was stored."""
    text = HARMLESS.format(name=name) + " " + MARKUP.format(name=name) + ("\x00" if nul else "")
    return text[:chars] if chars is not None else text + " " + "W" * 2_000


def calls_of(episode_id: str) -> tuple[Call, ...]:
    tool = {"id": nasty("tool-id"), "function": {"name": nasty("tool-name"), "arguments": nasty("tool-arguments")}}
    answer = {
        "role": "assistant",
        "content": nasty("model-output"),
        "reasoning_content": nasty("reasoning"),
        "tool_calls": [tool],
    }
    messages: list[Any] = [
        {"role": nasty("message-role"), "content": nasty("message-content")},
        {"role": "user", "content": [{"type": "text", "text": nasty("message-part")}, {"type": nasty("part-type")}]},
        {"type": "function_call_output", "call_id": nasty("result-of"), "output": nasty("tool-result")},
        [nasty("strange-message")],
    ]
    choice = Choice(
        index=0,
        sampled_ids=(7, 8),
        logprobs=(-0.5, -1.5),
        finish_reason=nasty("finish-reason"),
        message=msgspec.json.encode(answer),
    )
    known: dict[str, Any] = {
        "episode_id": episode_id,
        "prompt_ids": (1, 2, 3),
        "messages": tuple(msgspec.json.encode(message) for message in messages),
        "request": json.dumps({nasty("request-field"): nasty("request-value")}).encode(),
        "key_id": nasty("key-id"),
        "engine": nasty("engine"),
    }
    failed = {"state": CallState.FAILED, "reason": Reason.UPSTREAM_FAILED, "detail": nasty("error-detail")}
    return (
        Call(call_id=f"{episode_id}-0", index=0, policy="solver", role=nasty("role"), choices=(choice,), **known),
        Call(call_id=f"{episode_id}-1", index=1, model=nasty("model"), dialect=nasty("dialect"), **known, **failed),
    )


async def archive(ledger: SqlLedger, head: EpisodeHead) -> None:
    calls = calls_of(head.episode_id)
    view = EpisodeView(
        head=head, state=EpisodeState.SEALED, status=EpisodeStatus.OK, calls=calls, intents=(), pins={"solver": 0}
    )
    done = packed(view, await ledger.get_run("default", head.run), head.created_ms + 5)
    assert await ledger.archive_episode(done.row, done.blob, done.digest, done.receipts)


async def tell_nasty_stories(gateway: RunningGateway, engine: ScriptedEngine) -> Told:
    """A group that was trained, one that waits, a version, an act and keys, with markup wherever text is taken."""
    del engine
    ledger, now_ms = gateway.ledger, SystemClock().now_ms()  # the gateway's sweeper goes by the same clock
    families = {nasty("family", chars=60, nul=False).replace("/", ":"): 1.0}
    weights = {nasty("reward-name", nul=False): 0.5}
    await ledger.put_run("default", RunSettings(run="plain", group_size=2, reward_weights=weights))
    await ledger.put_run("default", RunSettings(run="mixed", families=families))
    told = Told()
    for number, run in enumerate(("plain", "plain", "plain")):
        task = nasty("task", chars=400, nul=False)
        head = EpisodeHead(
            episode_id=f"ep:{number}..-_",
            run=run,
            task=task,
            metadata=msgspec.json.encode({nasty("metadata-key"): nasty("metadata-value")}),
            created_ms=now_ms + number,
            key_id=nasty("opener"),
        )
        head, _ = await ledger.create_episode(head, None, "")
        reward = Reward(
            reward_id=f"reward-{number}",
            seq=0,
            episode_id=head.episode_id,
            name=nasty("reward-name", nul=False),
            value=float(number),
            source=nasty("reward-source"),
            metadata=msgspec.json.encode(nasty("reward-metadata")),
            created_ms=now_ms,
        )
        await ledger.add_reward("default", reward, None, "")
        await ledger.add_event(
            head.episode_id, Event(at_ms=now_ms, kind=nasty("event-kind"), detail=nasty("event-detail"))
        )
        await archive(ledger, head)
        told.tool_episode = head.episode_id
    await _train(ledger, now_ms)
    await ledger.add_key(
        Key(key_id="k-nasty", digest="d" * 64, label=nasty("key-label"), scopes=(Scope.READ,), created_ms=now_ms)
    )
    await ledger.add_act(
        Act(
            at_ms=now_ms,
            tenant="default",
            key_id=nasty("act-key"),
            act=nasty("act"),
            target=nasty("act-target"),
            detail=msgspec.json.encode({nasty("act-detail-key"): nasty("act-detail")}),
            outcome=nasty("act-outcome"),
        )
    )
    return told


async def _train(ledger: SqlLedger, now_ms: int) -> None:
    await ledger.settle_groups(now_ms + 10**9)  # unless the gateway's own sweeper was first
    (group,), _ = await ledger.list_groups("default", run=None, task=None, limit=9, cursor=None, state="ready")
    fence = await ledger.take_lease("solver", nasty("lease-holder"), now_ms, 10**9)
    assert fence is not None
    credit = tuple(
        CallCredit(episode_id=member.episode_id, call_id=f"{member.episode_id}-0", advantage=0.5)
        for member in group.members
    )
    batch = Batch(
        batch_id="batch-1",
        policy="solver",
        step=1,
        epoch=0,
        fence=fence,
        group_ids=(group.group_id,),
        credit=credit,
        created_ms=now_ms,
    )
    taken = await ledger.take(batch)
    told = {"detail": nasty("batch-detail"), "problem": nasty("batch-problem"), nasty("metric"): nasty("metric-value")}
    told |= {"loss_type": nasty("loss-type"), "loss": nasty("loss"), "families": {nasty("metric-family"): {}}}
    metrics = msgspec.json.encode(told)
    reserved = await ledger.reserve_version("solver", 0, now_ms)
    version = msgspec.structs.replace(
        reserved, folder="solver@1", digest="d" * 64, metrics=metrics, detail=nasty("version-detail")
    )
    await ledger.put_version(version)
    await ledger.activate("solver", 1, 0)
    await ledger.mark_trained(msgspec.structs.replace(taken, state="trained", version=1, metrics=metrics))


SHOWN_SOMEWHERE = (
    "task",
    "metadata-key",
    "metadata-value",
    "opener",
    "role",
    "model",
    "model-output",
    "reasoning",
    "tool-name",
    "tool-arguments",
    "tool-result",
    "message-role",
    "message-content",
    "message-part",
    "part-type",
    "strange-message",
    "result-of",
    "request-field",
    "request-value",
    "finish-reason",
    "engine",
    "dialect",
    "error-detail",
    "key-id",
    "reward-name",
    "reward-source",
    "reward-metadata",
    "event-kind",
    "event-detail",
    "key-label",
    "act",
    "act-target",
    "act-detail",
    "act-outcome",
    "batch-problem",
    "loss-type",
    "version-detail",
    "family",
)


@pytest.fixture(scope="module")
def nasty_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("nasty"), tell_nasty_stories) as stage:
        yield stage


def test_no_page_runs_loads_or_links_to_what_was_stored(browser: Browser, nasty_stage: Stage) -> None:
    context = browser.new_context(base_url=nasty_stage.url, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(30_000)
    sign_in(context, nasty_stage, "admin")
    page = context.new_page()
    wrong: list[str] = []
    now = ["/dashboard"]

    def asked(request: Request) -> None:
        if not request.url.startswith(nasty_stage.url):
            wrong.append(f"{now[0]} asked for {request.url[:100]}")

    def shown(dialog: Dialog) -> None:
        wrong.append(f"{now[0]} opened a dialog: {dialog.message[:100]}")
        dialog.dismiss()

    page.on("request", asked)
    page.on("dialog", shown)
    page.on("pageerror", lambda error: wrong.append(f"{now[0]} raised {error}"))
    waiting, seen, marks = ["/dashboard"], set[str](), set[str]()
    while waiting:
        now[0] = path = waiting.pop(0)
        if shape_of(path) in seen:
            continue
        seen.add(shape_of(path))
        assert len(seen) < MAX_PAGES
        text = read(page, path, wrong)
        marks |= set(re.findall(r"mark-([a-z-]+?)-mark", text))
        waiting += links_of(page, nasty_stage.url)
    context.close()
    assert wrong == []
    assert set(SHOWN_SOMEWHERE) <= marks, f"not shown: {set(SHOWN_SOMEWHERE) - marks}"
    assert len(seen) > 20


def read(page: Page, path: str, wrong: list[str]) -> str:
    """What a page shows, with all that is folded opened and all that is lazy loaded."""
    answer = page.goto(path)
    assert answer is not None
    if answer.status >= 500:
        wrong.append(f"{path} answered {answer.status}")
    page.evaluate("document.querySelector('#strip')?.scrollIntoView()")
    for lazy in ("#strip[hx-get]", "#call-tokens[hx-get]"):
        page.locator(lazy).wait_for(state="detached")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.keyboard.press("Tab")
    wrong += [f"{path} has {found}" for found in page.evaluate(FORBIDDEN)]
    ran = page.evaluate("window.ran")
    if ran is not None:
        wrong.append(f"{path} ran what was stored in {ran}")
    if overflows(page) > 0:
        wrong.append(f"{path} is {overflows(page)} pixels too wide")
    text = page.locator("body").inner_text()
    if HARMLESS.format(name="model-output") in text and "{{7*7}}" not in text:
        wrong.append(f"{path} renders templates")
    return text + page.evaluate("[...document.querySelectorAll('[title]')].map((one) => one.title).join(' ')")


def shape_of(path: str) -> str:
    """Pages that differ in a cursor or in which of many is shown are looked at once for each address."""
    return re.sub(r"cursor=[^&]+", "cursor=", path)


def links_of(page: Page, root: str) -> list[str]:
    found = page.eval_on_selector_all("a[href]", "all => all.map((one) => one.getAttribute('href'))")
    paths: list[str] = []
    for href in found:
        parts = urlsplit(urljoin(page.url, href))
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        if path.startswith("/dashboard") and not path.startswith("/dashboard/static") and path != "/dashboard/login":
            paths.append(path)
    return paths
