"""`/v1/policies`: what is trained, its versions, and the swap from one to the next."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Depends
from pydantic import Field

from gateway.answers import JsonResponse
from gateway.auditing import audited
from gateway.auth import Caller
from gateway.dependencies import Services
from gateway.hotswap import Publication
from gateway.metrics import OTHER
from gateway.routes.access import PageOf, Publisher, Reader, ServicesOf
from gateway.routes.bodies import Body, Text, body_of, documented
from gateway.routes.views import policy_view
from tracker.errors import Conflict, HoneError, NotFound
from tracker.trials import TrialState
from tracker.types import Policy, Probe, ProbePoint, VersionState

router = APIRouter(prefix="/v1/policies", tags=["policies"])
MAX_POINTS: Final = 64
Logprob = Annotated[float, Field(le=1e-3, ge=-1e6)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class PolicyBody(Body):
    """A policy, as it stands in the settings."""

    name: Text
    model: Text | None = None


class PointBody(Body):
    """One token after one prompt, under three versions."""

    prompt_ids: Annotated[list[TokenId], Field(min_length=1, max_length=2**17)]
    token_id: TokenId
    logprob: Logprob
    previous: Logprob
    base: Logprob


class ProbeBody(Body):
    """How an engine that serves the version is recognised."""

    points: Annotated[list[PointBody], Field(max_length=MAX_POINTS)]
    noise: Annotated[float, Field(ge=0, le=1e6)] = 0.0


class VersionBody(Body):
    """What a trainer publishes."""

    folder: Text
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    epoch: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    metrics: dict[str, Any] | None = None
    probe: ProbeBody | None = None


class RollbackBody(Body):
    """Where to go back to."""

    version: Annotated[int, Field(ge=0, lt=2**31)]


@router.get("")
async def list_policies(caller: Reader, services: ServicesOf) -> Any:
    """Every policy with its versions."""
    del caller  # policies are of no tenant; who may read may see them
    shown = [await _shown(services, policy.name) for policy in services.settings.stores.policies]
    return JsonResponse({"data": shown, "next_cursor": None})


@router.post("", openapi_extra=documented(PolicyBody))
async def put_policy(
    caller: Publisher, services: ServicesOf, body: Annotated[PolicyBody, Depends(body_of(PolicyBody))]
) -> Any:
    """Confirm a policy that the settings name; policies are added there, since engines are started for them."""
    async with audited(services, caller, "policy.confirm", body.name):
        policy = services.settings.stores.policy(body.name)
        if policy is None:
            told = f"Policies stand in hone.toml or HONE_POLICIES: add {body.name}=MODEL there and start again."
            raise NotFound(told, param="name")
        if body.model not in (None, policy.model):
            raise Conflict(f"Policy {policy.name} has the model {policy.model}, not {body.model}.")
        return JsonResponse(await _shown(services, policy.name))


@router.post("/{name}/versions", status_code=201, openapi_extra=documented(VersionBody))
async def publish_version(
    caller: Publisher,
    services: ServicesOf,
    name: str,
    body: Annotated[VersionBody, Depends(body_of(VersionBody))],
) -> Any:
    """Swap a new version in; answers once agents get it, or with the reason why they will not."""
    publication = Publication(
        folder=body.folder,
        digest=body.digest,
        epoch=body.epoch,
        metrics=body.metrics or {},
        probe=_probe_of(body.probe),
    )
    told = {"folder": body.folder, "digest": body.digest}
    async with (
        audited(services, caller, "version.publish", name, told) as detail,
        _measured(services, name, "published"),
    ):
        version = await services.swap.publish(name, publication)
        detail["version"] = version.version
    trial = await services.ledger.find_trial(name, version.version)
    state = version.state if trial is None or trial.state is TrialState.PROMOTED else trial.state
    answer = {"policy": name, "version": version.version, "state": state, "detail": version.detail}
    return JsonResponse(answer, status_code=201)


@router.get("/{name}/versions/{version}/lineage")
async def get_version_lineage(
    caller: Reader, services: ServicesOf, page: PageOf, name: str, version: Annotated[int, Field(ge=1, lt=2**31)]
) -> Any:
    """What a version was trained on, by its own step and by those before it on its line, newest first."""
    told, next_cursor = await services.batches.version_lineage(caller.tenant, name, version, page.limit, page.cursor)
    return JsonResponse({"policy": name, "version": version, "data": told, "next_cursor": next_cursor})


@router.post("/{name}/rollback", openapi_extra=documented(RollbackBody))
async def roll_back(
    caller: Publisher,
    services: ServicesOf,
    name: str,
    body: Annotated[RollbackBody, Depends(body_of(RollbackBody))],
) -> Any:
    """Go back to an earlier version; what came after it is withdrawn and its epoch's publishes are refused."""
    policy = await go_back(services, caller, name, body.version)
    answer = {"policy": name, "version": policy.active, "state": VersionState.ACTIVE, "epoch": policy.epoch}
    return JsonResponse(answer)


async def go_back(services: Services, caller: Caller, name: str, version: int) -> Policy:
    """Roll a policy back for a caller who may: audited and counted, by whatever way it was asked for."""
    async with (
        audited(services, caller, "version.roll_back", name, {"version": version}),
        _measured(services, name, "rolled_back"),
    ):
        return await services.swap.rollback(name, version, services.releasing.rolled_back(name, version, caller.key_id))


@asynccontextmanager
async def _measured(services: Services, policy: str, done: str) -> AsyncGenerator[None]:
    """Count a swap and what it took; a policy that nobody has is no label."""
    metrics, started_s = services.metrics, perf_counter()
    named = OTHER if services.settings.stores.policy(policy) is None else policy
    try:
        yield
    except HoneError as error:
        metrics.swaps.of(named, error.code or "refused").inc()
        raise
    metrics.swaps.of(named, done).inc()
    metrics.swap_seconds.of(named).observe(perf_counter() - started_s)


def _probe_of(body: ProbeBody | None) -> Probe | None:
    if body is None:
        return None
    points = tuple(msgspec.convert(point.model_dump(), ProbePoint) for point in body.points)
    return Probe(points=points, noise=body.noise)


async def _shown(services: Services, name: str) -> dict[str, Any]:
    settings = services.settings.stores.policy(name)
    policy = await services.ledger.ensure_policy(name)
    return policy_view(policy, settings.model if settings else None, await services.ledger.list_versions(name))
