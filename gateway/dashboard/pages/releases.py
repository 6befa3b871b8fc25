"""`/dashboard/policies/{name}/release/…`: what an administrator may do to a release, each with a page that says what
will happen. It is done and audited as the same request over REST is."""

from __future__ import annotations

import math
from typing import Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from gateway.auditing import audited
from gateway.dashboard.access import AdminOf, Viewer
from gateway.dashboard.forms import FormOf
from gateway.dashboard.frame import ROOT, page
from gateway.dashboard.releases import MAX_CANARY, MAX_SHADOW, ReleaseAct, tell
from gateway.dependencies import Services
from gateway.routes.access import ServicesOf
from tracker.errors import BadRequest, Conflict

router = APIRouter(prefix=f"{ROOT}/policies")
OF_A_TRIAL: Final = (ReleaseAct.PROMOTE, ReleaseAct.PAUSE, ReleaseAct.RESUME, ReleaseAct.SHARE)


@router.get("/{name}/release/{act}")
async def confirm(request: Request, viewer: AdminOf, services: ServicesOf, name: str, act: ReleaseAct) -> Response:
    """What an act would do with the `version` and `share` of the query, and the button that does it."""
    release = await services.releasing.release(name)
    if act is ReleaseAct.END_SHADOW and release.shadow is None:
        raise Conflict(f"No version of {name} is a shadow.")
    if act in OF_A_TRIAL and release.trial is None:
        raise Conflict(f"No version of {name} is on trial.")
    asked = request.query_params
    told = tell(act, release, *_read(act, asked.get("version", ""), asked.get("share", "")))
    return page(request, viewer, "confirm.html", policy=release.policy, told=told)


@router.post("/{name}/release/{act}")
async def change(viewer: AdminOf, services: ServicesOf, form: FormOf, name: str, act: ReleaseAct) -> Response:
    """Do it."""
    version, share = _read(act, form.get("version", ""), form.get("share", ""))
    told = {key: value for key, value in (("version", version), ("share", share)) if value is not None}
    async with audited(services, viewer.caller, _audited_as(act), name, told):
        await _done(services, viewer, name, act, version, share)
    return RedirectResponse(f"{ROOT}/policies/{quote(name, safe='')}#release", 303)


async def _done(
    services: Services, viewer: Viewer, name: str, act: ReleaseAct, version: int | None, share: float | None
) -> None:
    releasing, by = services.releasing, viewer.key_id
    match act, version, share:
        case ReleaseAct.PAUSE, _, _:
            await releasing.pause(name, by)
        case ReleaseAct.RESUME, _, _:
            await releasing.resume(name, by)
        case ReleaseAct.END_SHADOW, _, _:
            await releasing.shadow(name, None, MAX_SHADOW, by)
        case ReleaseAct.PROMOTE, int(), _:
            await releasing.promote(name, version, by)
        case ReleaseAct.SHARE, int(), float():
            await releasing.change_share(name, version, share, by)
        case ReleaseAct.SHADOW, int(), float():
            await releasing.shadow(name, version, share, by)
        case _:
            raise Conflict(f"Nothing is known of what to {act} of {name}.")


def _audited_as(act: ReleaseAct) -> str:
    """The act's name in the audit log, as REST has it."""
    return f"release.{ReleaseAct.SHADOW if act is ReleaseAct.END_SHADOW else act}"


def _read(act: ReleaseAct, version: str, share: str) -> tuple[int | None, float | None]:
    """The fields that an act needs; raises `BadRequest`."""
    needs_version = act in (ReleaseAct.PROMOTE, ReleaseAct.SHARE, ReleaseAct.SHADOW)
    needs_share = act in (ReleaseAct.SHARE, ReleaseAct.SHADOW)
    if needs_version and not (version.isascii() and version.isdigit() and len(version) < 10):
        raise BadRequest("version is a number.", param="version")
    most = MAX_SHADOW if act is ReleaseAct.SHADOW else MAX_CANARY
    return (int(version) if needs_version else None, _percent(share, most) if needs_share else None)


def _percent(text: str, most: float) -> float:
    try:
        value: Any = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= most:
        raise BadRequest(f"The share is a number of percent above 0 and at most {most:g}.", param="share")
    return float(value)
