"""`POST /v1/reward`: one event in the ledger, aimed at an episode or a call.

SQL first: a final reward commits there that the episode ends, then the episode store is told. If that second step is
lost, the sweeper repeats it. So what is stored is accepted, whatever is away afterwards: a driver that is refused gives
the same reward again.
"""

from __future__ import annotations

import logging
import math
import secrets
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends
from pydantic import BeforeValidator, Field

from gateway.answers import JsonResponse
from gateway.dependencies import Services
from gateway.identity import episode_id_of
from gateway.routes.access import Rewarder, ServicesOf
from gateway.routes.bodies import REPEATED, Body, Id, Json, Text, body_of, digest_of, documented, encoded
from gateway.routes.episodes import finish_in_store
from gateway.story import has_call, num_waiting
from tracker.errors import BadRequest, NotFound, Unavailable
from tracker.types import EpisodeRow, EpisodeState, EpisodeStatus, Reward

LOG: Final = logging.getLogger("hone.rewards")
router = APIRouter(prefix="/v1/reward", tags=["rewards"])


def _finite(value: object) -> float | None:
    """true and false are 1 and 0, null is "not scored"; nothing else but a finite number is a reward."""
    if value is None:
        return None
    if isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError as error:
            raise ValueError("a reward is a finite number, true, false or null") from error
        if math.isfinite(number):
            return number
    raise ValueError("a reward is a finite number, true, false or null")


class RewardBody(Body):
    """What `POST /v1/reward` takes."""

    episode_id: Id | None = None
    call_id: Id | None = None
    reward: Annotated[float | None, BeforeValidator(_finite)]
    name: Annotated[Text, Field(min_length=1)] = "reward"
    final: bool | None = None
    """Whether it ends the episode; by default true for an episode, false for a call."""
    source: Text = ""
    metadata: Json = None
    idempotency_key: Id | None = None


@router.post("", status_code=201, responses=REPEATED, openapi_extra=documented(RewardBody))
async def add_reward(
    caller: Rewarder, services: ServicesOf, body: Annotated[RewardBody, Depends(body_of(RewardBody))]
) -> Any:
    """Record a reward."""
    episode_id = _target_of(body)
    row = await services.ledger.get_episode(caller.tenant, episode_id)
    if body.call_id is not None and not await has_call(services, row, body.call_id):
        raise NotFound(f"There is no call {body.call_id!r}.", param="call_id")
    reward = Reward(
        reward_id=f"rew-{secrets.token_hex(16)}",
        seq=0,
        episode_id=episode_id,
        call_id=body.call_id,
        name=body.name,
        value=body.reward,
        final=body.final if body.final is not None else body.call_id is None,
        source=body.source,
        metadata=encoded(body.metadata),
        created_ms=services.clock.now_ms(),
    )
    stored, is_new = await services.ledger.add_reward(caller.tenant, reward, body.idempotency_key, digest_of(body))
    row, waiting = await _followed(services, row, stored)
    answer = {
        "reward_id": stored.reward_id,
        "episode_id": episode_id,
        "call_id": stored.call_id,
        "late": stored.late,
        "ended": stored.final or row.status is not None,
        "waiting": waiting,
    }
    return JsonResponse(answer, status_code=201 if is_new else 200)


async def _followed(services: Services, row: EpisodeRow, stored: Reward) -> tuple[EpisodeRow, int | None]:
    """Have the episode end where the reward says so; the episode now, and its calls in flight, if a store tells."""
    tenant, episode_id = row.head.tenant, row.head.episode_id
    waiting: int | None = None
    try:
        row = await services.ledger.get_episode(tenant, episode_id)
        if stored.final and row.state is not EpisodeState.ARCHIVED:
            await finish_in_store(services, tenant, episode_id, row.status or EpisodeStatus.OK)
        waiting = await num_waiting(services, episode_id)
    except Unavailable as error:
        LOG.warning("reward %s is stored, and the end of its episode waits: %s", stored.reward_id, error.message)
    return row, waiting


def _target_of(body: RewardBody) -> str:
    """The episode that a reward is for; a call leads to its own by the form of its id."""
    if body.call_id is None:
        if body.episode_id is None:
            raise BadRequest("Say what is rewarded: episode_id or call_id.", param="episode_id")
        return body.episode_id
    of_call = episode_id_of(body.call_id)
    if of_call is None:
        raise NotFound(f"There is no call {body.call_id!r}.", param="call_id")
    if body.episode_id not in (None, of_call):
        raise NotFound(f"Episode {body.episode_id!r} has no call {body.call_id!r}.", param="call_id")
    return of_call
