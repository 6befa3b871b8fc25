"""Which episodes a request asks for: the filters of `GET /v1/episodes`, and of the dashboard's page of them.

An empty value asks for nothing, as forms send it.
"""

from __future__ import annotations

import math
from typing import Annotated, Final

from fastapi import Depends, Query

from gateway.routes.access import Filter
from tracker.errors import BadRequest
from tracker.types import EpisodeFilter, Record

MAX_CHARS: Final = 32
MAX_DIGITS: Final = 9


class Range(Record, frozen=True):
    """Between which rewards, both included."""

    low: float | None = None
    high: float | None = None


class Kind(Record, frozen=True):
    """What one of an episode's calls has."""

    policy: str | None = None
    version: int | None = None
    role: str | None = None


async def range_of(
    min_reward: Annotated[str | None, Query(max_length=MAX_CHARS)] = None,
    max_reward: Annotated[str | None, Query(max_length=MAX_CHARS)] = None,
) -> Range:
    """The range of rewards that is asked for."""
    return Range(low=_reward(min_reward, "min_reward"), high=_reward(max_reward, "max_reward"))


async def kind_of(
    policy: Filter = None,
    version: Annotated[str | None, Query(max_length=MAX_CHARS)] = None,
    role: Filter = None,
) -> Kind:
    """The calls that are asked for."""
    return Kind(policy=policy or None, version=_version(version), role=role or None)


async def filter_of(
    rewards: Annotated[Range, Depends(range_of)],
    kind: Annotated[Kind, Depends(kind_of)],
    run: Filter = None,
    task: Filter = None,
    status: Filter = None,
) -> EpisodeFilter:
    """The episodes that are asked for."""
    return EpisodeFilter(
        run=run or None,
        task=task or None,
        status=status or None,
        policy=kind.policy,
        version=kind.version,
        role=kind.role,
        min_reward=rewards.low,
        max_reward=rewards.high,
    )


FilterOf = Annotated[EpisodeFilter, Depends(filter_of)]


def _version(text: str | None) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        raise BadRequest("version is a whole number.", param="version")
    return int(text)


def _reward(text: str | None, name: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadRequest(f"{name} is a finite number.", param=name)
    return value
