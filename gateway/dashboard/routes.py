"""Which pages there are."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter

from gateway.dashboard.pages import (
    assets,
    audit,
    engines,
    episode,
    episodes,
    find,
    groups,
    keys,
    login,
    overview,
    policies,
    releases,
    runs,
    settings,
    training,
)

ROUTERS: Final[tuple[APIRouter, ...]] = (
    assets.router,
    login.router,
    overview.router,
    groups.router,
    episodes.router,
    episode.router,
    find.router,
    policies.router,
    releases.router,
    training.router,
    runs.router,
    engines.router,
    keys.router,
    audit.router,
    settings.router,
)
