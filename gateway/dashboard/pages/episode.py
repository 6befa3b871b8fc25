"""`/dashboard/episodes/{id}`: one episode, its calls, tokens, rewards, receipts, and what was trained on it.

Parts that grow with the episode are told page by page, each under an address of its own, so that all of it can be read
without a script. Deleting is asked about on a page that says what goes.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from gateway.auditing import audited
from gateway.dashboard.access import AdminOf, Viewer, ViewerOf
from gateway.dashboard.chat import spoken
from gateway.dashboard.episode_view import (
    EXCLUSIONS,
    ROWS,
    TURNS,
    branch_of,
    branch_views,
    call_rows,
    calls_of,
    fate_of,
    left_out,
    raw_json,
    raw_request,
    reasons_of,
    turn_view,
    turns_of,
)
from gateway.dashboard.forms import FormOf
from gateway.dashboard.frame import ROOT, page
from gateway.dashboard.glance import Glance, Outlines, check, read_glance
from gateway.dashboard.lanes import num_lanes
from gateway.dashboard.pieces import Pieces
from gateway.dashboard.strips import WINDOW, call_strip, ids_of, strip_of
from gateway.dashboard.wording import segment
from gateway.dependencies import Services
from gateway.erasure import erase_episode
from gateway.routes.access import ServicesOf
from tracker.errors import BadRequest, NotFound
from tracker.types import Call

router = APIRouter(prefix=f"{ROOT}/episodes/{{episode_id}}")
GONE: Final = 410
MAX_PLACE: Final = 2**31
Place = Annotated[int, Query(ge=0, lt=MAX_PLACE)]


@router.get("")
async def episode(  # noqa: PLR0913 - each is a part of the address
    request: Request,
    viewer: ViewerOf,
    services: ServicesOf,
    episode_id: str,
    branch: Place = 0,
    first: Place = 0,
    turn: Place = 0,
) -> Response:
    """The episode as a whole."""
    try:
        glance = await read_glance(services, _outlines(request), viewer.tenant, episode_id)
    except NotFound:
        return await _deleted(request, viewer, services, episode_id)
    lineage = await services.batches.episode_lineage(viewer.tenant, episode_id)
    values = await asyncio.to_thread(_whole, glance, branch, first, turn)
    fate = fate_of(lineage, has_place=glance.row.member is not None)
    return page(request, viewer, "episode.html", lineage=lineage, fate=fate, **values)


@router.get("/tokens")
async def tokens(
    request: Request, viewer: ViewerOf, services: ServicesOf, episode_id: str, branch: Place = 0, start: Place = 0
) -> Response:
    """A part of the tokens of a branch."""
    glance = await read_glance(services, _outlines(request), viewer.tenant, episode_id)
    _check_branch(glance, branch)
    policy = branch_views(glance)[branch].policy
    texts = await _pieces(request).texts(policy, ids_of(glance.told, branch, start))
    strip = strip_of(glance.told, branch, start, texts)
    here = f"{ROOT}/episodes/{segment(episode_id)}/tokens?branch={branch}"
    return page(
        request,
        viewer,
        "tokens.html",
        row=glance.row,
        strip=strip,
        branches=branch_views(glance),
        has_texts=bool(texts),
        here=here,
        before=max(0, strip.start - WINDOW) if strip.start else None,
        after=strip.end if strip.end < strip.num_tokens else None,
    )


@router.get("/check")
async def receipts(request: Request, viewer: ViewerOf, services: ServicesOf, episode_id: str) -> Response:
    """Compare every call with its receipt, now."""
    row = await services.ledger.get_episode(viewer.tenant, episode_id)
    told = await check(services, viewer.tenant, episode_id)
    return page(request, viewer, "check.html", row=row, told=told, at_ms=services.clock.now_ms())


@router.get("/delete")
async def ask_to_delete(request: Request, viewer: AdminOf, services: ServicesOf, episode_id: str) -> Response:
    """What would go."""
    row = await services.ledger.get_episode(viewer.tenant, episode_id)
    lineage = await services.batches.episode_lineage(viewer.tenant, episode_id)
    return page(request, viewer, "delete_episode.html", row=row, lineage=lineage)


@router.post("/delete")
async def delete(viewer: AdminOf, services: ServicesOf, form: FormOf, episode_id: str) -> Response:
    """Drop its calls, text and tokens."""
    if form.get("confirm") != "yes":
        raise BadRequest("Confirm that the episode is to be deleted.", param="confirm")
    async with audited(services, viewer.caller, "episode.delete", episode_id):
        await erase_episode(services, viewer.tenant, episode_id)
    return RedirectResponse(f"{ROOT}/episodes/{segment(episode_id)}", 303)


@router.get("/calls/{call_id}")
async def call(
    request: Request, viewer: ViewerOf, services: ServicesOf, episode_id: str, call_id: str, whole: bool = False
) -> Response:
    """One call: what was asked and answered, how it was sampled, and its tokens."""
    glance = await read_glance(services, _outlines(request), viewer.tenant, episode_id)
    found = next((one for one in glance.told.calls if one.call_id == call_id), None)
    if found is None:
        raise NotFound(f"Episode {episode_id} has no call {call_id!r} that ended.")
    wants_tokens = request.headers.get("hx-target") == "call-tokens" or whole
    texts: dict[int, str] = {}
    if wants_tokens and found.policy is not None:
        sampled = {token for choice in found.choices for token in choice.sampled_ids[:WINDOW]}
        texts = await _pieces(request).texts(found.policy, sampled)
    values = await asyncio.to_thread(_of_call, glance, found, texts)
    return page(request, viewer, "call.html", **values, tell_all=whole, wants_tokens=wants_tokens)


def _whole(glance: Glance, branch: int, first: int, turn: int) -> dict[str, Any]:
    """What takes long with a long episode."""
    branches = branch_views(glance)
    branch = min(branch, max(0, len(branches) - 1))
    out = left_out(glance)
    num_calls = len(glance.told.calls)
    num_turns = len(calls_of(glance, branch))
    here = f"{ROOT}/episodes/{segment(glance.row.head.episode_id)}"
    return {
        "glance": glance,
        "row": glance.row,
        "head": glance.row.head,
        "here": here,
        "calls": call_rows(glance, first),
        "num_calls": num_calls,
        "num_lanes": num_lanes(glance.told.timeline),
        "first": first,
        "next_calls": first + ROWS if first + ROWS < num_calls else None,
        "branches": branches,
        "branch": branch,
        "turns": turns_of(glance, branch, turn),
        "turn": turn,
        "num_turns": num_turns,
        "next_turn": turn + TURNS if turn + TURNS < num_turns else None,
        "left_out": out[:EXCLUSIONS],
        "num_left_out": len(out),
        "num_trained": sum(one.num_trained for one in branches),
        "metadata": None if glance.row.head.metadata == b"null" else raw_json(glance.row.head.metadata),
    }


def _of_call(glance: Glance, found: Call, texts: dict[int, str]) -> dict[str, Any]:
    told, receipts = glance.told, glance.receipts
    known = None if receipts is None or receipts.receipts is None else receipts.receipts.get(found.call_id)
    view = turn_view(glance, found)
    return {
        "row": glance.row,
        "call": found,
        "view": view,
        "messages": spoken(found.messages),
        "parent": view.after,
        "reasons": reasons_of(glance, found),
        "num_prompt": told.num_prompt[found.call_id],
        "num_sampled": sum(len(choice.sampled_ids) for choice in found.choices),
        "branch": branch_of(glance, found.call_id),
        "reward": glance.call_rewards.get(found.call_id),
        "receipt": known,
        "request_json": raw_request(found),
        "answers": [(choice, raw_json(choice.message)) for choice in found.choices],
        "strips": [(choice, call_strip(told, (found.call_id, choice.index), found, texts)) for choice in found.choices],
        "has_texts": bool(texts),
        "window": WINDOW,
    }


async def _deleted(request: Request, viewer: Viewer, services: Services, episode_id: str) -> Response:
    """An episode that is no more; raises `NotFound` where there never was one."""
    lineage = await services.batches.episode_lineage(viewer.tenant, episode_id)
    return page(request, viewer, "deleted_episode.html", GONE, lineage=lineage)


def _check_branch(glance: Glance, branch: int) -> None:
    if glance.gone or "tokens" in glance.row.removed:
        raise NotFound(f"Its tokens are gone: {glance.gone or 'removed by retention'}.")
    if branch >= len(glance.told.timeline.branches):
        raise NotFound(f"The episode has {len(glance.told.timeline.branches)} branches.")


def _pieces(request: Request) -> Pieces:
    pieces = request.app.state.pieces
    if not isinstance(pieces, Pieces):
        raise TypeError("the dashboard answers requests outside its lifespan")
    return pieces


def _outlines(request: Request) -> Outlines:
    outlines = request.app.state.outlines
    if not isinstance(outlines, Outlines):
        raise TypeError("the dashboard answers requests outside its lifespan")
    return outlines
