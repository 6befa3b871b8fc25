"""`/v1/policies/{name}/release` and what changes it, and `/v1/alarms`: which version gets what, and what is amiss."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from pydantic import Field

from gateway.answers import JsonResponse
from gateway.auditing import audited
from gateway.routes.access import Admin, PageOf, Reader, ServicesOf
from gateway.routes.bodies import Body, body_of, documented
from gateway.routes.release_views import alarm_view, event_view, release_view, trial_view

router = APIRouter(tags=["releases"])
VersionNumber = Annotated[int, Field(ge=0, lt=2**31)]
Percent = Annotated[float, Field(gt=0, le=95)]


class CanaryBody(Body):
    """Which share of new groups the version on trial gets."""

    version: VersionNumber
    share: Percent
    """Percent."""


class PromoteBody(Body):
    """Which version is given to all."""

    version: VersionNumber


class ShadowBody(Body):
    """Which version gets copies of calls; null: none."""

    version: VersionNumber | None
    share: Annotated[float, Field(gt=0, le=100)] = 10.0
    """Percent of the calls to the stable version."""


@router.get("/v1/policies/{name}/release")
async def get_release(caller: Reader, services: ServicesOf, name: str) -> Any:
    """How a policy's versions stand: stable, on trial, waiting, shadow, and what was decided last."""
    del caller  # policies are of no tenant; who may read may see them
    return JsonResponse(release_view(await services.releasing.release(name)))


@router.get("/v1/policies/{name}/releases")
async def list_releases(caller: Reader, services: ServicesOf, page: PageOf, name: str) -> Any:
    """Everything that became of a policy's versions, newest first."""
    del caller
    release = await services.releasing.release(name)
    events, next_cursor = await services.ledger.list_releases(release.policy.policy, page.limit, page.cursor)
    return JsonResponse({"data": [event_view(event) for event in events], "next_cursor": next_cursor})


@router.post("/v1/policies/{name}/canary", openapi_extra=documented(CanaryBody))
async def change_share(
    caller: Admin, services: ServicesOf, name: str, body: Annotated[CanaryBody, Depends(body_of(CanaryBody))]
) -> Any:
    """Give the version on trial another share of new groups."""
    told = {"version": body.version, "share": body.share}
    async with audited(services, caller, "release.share", name, told):
        trial = await services.releasing.change_share(name, body.version, body.share, caller.key_id)
    return JsonResponse(trial_view(trial))


@router.post("/v1/policies/{name}/promote", openapi_extra=documented(PromoteBody))
async def promote(
    caller: Admin, services: ServicesOf, name: str, body: Annotated[PromoteBody, Depends(body_of(PromoteBody))]
) -> Any:
    """Give the version on trial to all agents now."""
    async with audited(services, caller, "release.promote", name, {"version": body.version}):
        policy = await services.releasing.promote(name, body.version, caller.key_id)
    return JsonResponse({"policy": policy.policy, "version": policy.active, "epoch": policy.epoch})


@router.post("/v1/policies/{name}/pause")
async def pause(caller: Admin, services: ServicesOf, name: str) -> Any:
    """New groups get the stable version; what is on trial is not promoted meanwhile."""
    async with audited(services, caller, "release.pause", name):
        trial = await services.releasing.pause(name, caller.key_id)
    return JsonResponse(trial_view(trial))


@router.post("/v1/policies/{name}/resume")
async def resume(caller: Admin, services: ServicesOf, name: str) -> Any:
    """The trial takes in new groups again."""
    async with audited(services, caller, "release.resume", name):
        trial = await services.releasing.resume(name, caller.key_id)
    return JsonResponse(trial_view(trial))


@router.post("/v1/policies/{name}/shadow", openapi_extra=documented(ShadowBody))
async def set_shadow(
    caller: Admin, services: ServicesOf, name: str, body: Annotated[ShadowBody, Depends(body_of(ShadowBody))]
) -> Any:
    """Have a version get copies of calls, which nobody is answered with and nothing is trained on."""
    told = {"version": body.version, "share": body.share}
    async with audited(services, caller, "release.shadow", name, told):
        shadow = await services.releasing.shadow(name, body.version, body.share, caller.key_id)
    share = None if shadow is None else body.share
    return JsonResponse({"policy": name, "version": body.version, "share": share})


@router.get("/v1/alarms")
async def list_alarms(caller: Reader, services: ServicesOf) -> Any:
    """What is amiss with the rewards and answers of the tenant's runs now, newest first."""
    found = await services.ledger.list_alarms(caller.tenant)
    return JsonResponse({"data": [alarm_view(alarm) for alarm in found], "next_cursor": None})
