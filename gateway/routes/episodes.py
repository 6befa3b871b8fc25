"""`/v1/episodes`: opening, ending, reading and deleting episodes."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from pydantic import Field

from gateway.answers import JsonResponse
from gateway.auditing import audited
from gateway.auth import Caller
from gateway.dependencies import Services
from gateway.erasure import erase_episode
from gateway.routes.access import Admin, Agent, Anyone, PageOf, Reader, ServicesOf
from gateway.routes.bodies import REPEATED, Body, Id, Json, Text, body_of, digest_of, documented, encoded
from gateway.routes.finding import FilterOf
from gateway.routes.views import episode_view, row_view, samples_view, timeline_view
from gateway.story import num_waiting, read_story
from tracker.errors import Forbidden, NotFound
from tracker.types import DEFAULT, EpisodeHead, EpisodeState, EpisodeStatus, Scope

router = APIRouter(prefix="/v1/episodes", tags=["episodes"])
SESSION_STATUSES: Final = frozenset({EpisodeStatus.OK, EpisodeStatus.FAILED})
MAX_TTL_S: Final = 30 * 24 * 3600


class EpisodeBody(Body):
    """What `POST /v1/episodes` takes."""

    task: Text
    run: Id | None = None
    policy: Text | None = None
    version: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """Calls get this version, whatever is published meanwhile."""
    metadata: Json = None
    ttl_s: Annotated[float, Field(gt=0, le=MAX_TTL_S)] | None = None
    idempotency_key: Id | None = None


class FinishBody(Body):
    """How an episode ended."""

    status: Annotated[EpisodeStatus, Field(strict=False)]


@router.post("", status_code=201, responses=REPEATED, openapi_extra=documented(EpisodeBody))
async def create_episode(
    caller: Agent, services: ServicesOf, body: Annotated[EpisodeBody, Depends(body_of(EpisodeBody))]
) -> Any:
    """Open an episode and give it a place in the open round of its run and task."""
    policy = await _policy_of(services, body)
    active = await _active_versions(services)  # asked first: without the episode store, no episode is begun in SQL
    head = EpisodeHead(
        episode_id=f"ep-{secrets.token_hex(16)}",
        tenant=caller.tenant,
        run=body.run or DEFAULT,
        task=body.task,
        policy=policy,
        version=body.version,
        created_ms=services.clock.now_ms(),
        ttl_ms=None if body.ttl_s is None else max(1, int(body.ttl_s * 1000)),
        metadata=encoded(body.metadata),
        key_id=caller.key_id,
    )
    stored, is_new = await services.ledger.create_episode(head, body.idempotency_key, digest_of(body), bounded=True)
    if is_new or (await services.ledger.get_episode(caller.tenant, stored.episode_id)).state is EpisodeState.OPEN:
        await services.store.open(stored)
    return JsonResponse(_opened(services, stored, active), status_code=201 if is_new else 200)


@router.get("")
async def list_episodes(caller: Reader, services: ServicesOf, page: PageOf, wanted: FilterOf) -> Any:
    """Episodes, newest first."""
    found = await services.ledger.find_episodes(caller.tenant, wanted, page.limit, page.cursor)
    return JsonResponse({"data": [row_view(row) for row in found.rows], "next_cursor": found.older})


@router.get("/{episode_id}")
async def get_episode(caller: Reader, services: ServicesOf, episode_id: str) -> Any:
    """One episode in numbers."""
    return JsonResponse(episode_view(await read_story(services, caller.tenant, episode_id)))


@router.get("/{episode_id}/timeline")
async def get_timeline(caller: Reader, services: ServicesOf, episode_id: str) -> Any:
    """The tree of the episode's calls."""
    return JsonResponse(timeline_view(await read_story(services, caller.tenant, episode_id)))


@router.get("/{episode_id}/samples")
async def get_samples(caller: Reader, services: ServicesOf, episode_id: str) -> Any:
    """What of the episode would be trained, branch by branch, and what is left out and why."""
    return JsonResponse(samples_view(await read_story(services, caller.tenant, episode_id)))


@router.get("/{episode_id}/lineage")
async def get_lineage(caller: Reader, services: ServicesOf, episode_id: str) -> Any:
    """Which batches were trained on the episode, and which versions carry it; also of a deleted one."""
    return JsonResponse(await services.batches.episode_lineage(caller.tenant, episode_id))


@router.post("/{episode_id}/finish", openapi_extra=documented(FinishBody))
async def finish_episode(
    caller: Anyone,
    services: ServicesOf,
    episode_id: str,
    body: Annotated[FinishBody, Depends(body_of(FinishBody))],
) -> Any:
    """End an episode once its calls in flight have ended."""
    _check_may_finish(caller, episode_id, body.status)
    row = await services.ledger.get_episode(caller.tenant, episode_id)
    if caller.episode_id is not None:
        await services.keys.opener(caller.tenant, row.head.key_id)
    await services.ledger.end_episode(episode_id, body.status, services.clock.now_ms())
    state = await finish_in_store(services, caller.tenant, episode_id, body.status)
    waiting = await num_waiting(services, episode_id)
    return JsonResponse({"episode_id": episode_id, "state": state, "status": body.status, "waiting": waiting})


@router.delete("/{episode_id}")
async def delete_episode(caller: Admin, services: ServicesOf, episode_id: str) -> Any:
    """Drop an episode's calls, text and tokens."""
    async with audited(services, caller, "episode.delete", episode_id):
        await erase_episode(services, caller.tenant, episode_id)
    return JsonResponse({"episode_id": episode_id, "deleted": True})


async def finish_in_store(services: Services, tenant: str, episode_id: str, status: EpisodeStatus) -> EpisodeState:
    """Tell the episode store what SQL has committed; an episode it no longer holds is archived or about to be."""
    try:
        return await services.store.finish(episode_id, status)
    except NotFound:
        return (await services.ledger.get_episode(tenant, episode_id)).state


async def _policy_of(services: Services, body: EpisodeBody) -> str | None:
    """The policy an episode names, by name or alias; with a version, the one policy if there is one only."""
    stores = services.settings.stores
    name = body.policy
    if name is None and body.version is not None and len(stores.policies) == 1:
        name = stores.policies[0].name
    policy = None if name is None else stores.policy(name)
    if name is not None and policy is None:
        names = ", ".join(known.name for known in stores.policies)
        raise NotFound(f"There is no policy {name!r}; there is {names}.", param="policy")
    if body.version is not None:
        if policy is None:
            raise NotFound("A version belongs to a policy: name it.", param="policy")
        await _check_there(services, policy.name, body.version)
    return None if policy is None else policy.name


async def _check_there(services: Services, policy: str, version: int) -> None:
    """A version that is asked for was published, if long ago, and its files are still there."""
    serving = await services.versions.serving(policy, version)
    if serving.path and not await asyncio.to_thread(Path(serving.path).is_dir):
        raise NotFound(f"The files of version {version} of policy {policy} are gone: {serving.path}.", param="version")


async def _active_versions(services: Services) -> dict[str, int]:
    """policy -> the version that an episode pinned now gets."""
    names = [policy.name for policy in services.settings.stores.policies]
    return {name: (await services.store.get_routing(name)).active for name in names}


def _opened(services: Services, head: EpisodeHead, active: dict[str, int]) -> dict[str, Any]:
    """What an agent needs to call."""
    root = services.settings.base_url
    key = services.keys.session_key(head.tenant, head.episode_id)
    asked = {arm.policy: arm.version for arm in head.arms if arm.is_canary and arm.version > active.get(arm.policy, 0)}
    asked |= {head.policy: head.version} if head.policy is not None and head.version is not None else {}
    return {
        "episode_id": head.episode_id,
        "api_key": key,
        "base_url": f"{root}/v1",
        "env": {
            "OPENAI_BASE_URL": f"{root}/v1",
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": root,
            "ANTHROPIC_API_KEY": key,
        },
        "run": head.run,
        "task": head.task,
        "group_id": head.group_id,
        "versions": active | asked,
    }


def _check_may_finish(caller: Caller, episode_id: str, status: EpisodeStatus) -> None:
    """A session key ends its own episode, and only in the ways that its agent can know of."""
    if caller.episode_id is None:
        caller.require(Scope.AGENT)
    elif caller.episode_id != episode_id:
        raise NotFound(f"There is no episode {episode_id!r} for this key.", param="episode_id")
    elif status not in SESSION_STATUSES:
        raise Forbidden("A session key ends its episode as ok or failed only.")
