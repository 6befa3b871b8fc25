"""`/dashboard/find?id=…`: from an id that somebody has, out of a log or an answer's header, to the page of it.

An id says by its first letters what it is of. It leads to one of our own paths and nowhere else; whether there is such
a thing, and whose it is, is that page's to say. One that begins like nothing of ours is an episode's, if anything.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query
from starlette.responses import RedirectResponse, Response

from gateway.dashboard.access import ViewerOf
from gateway.dashboard.frame import ROOT
from gateway.dashboard.wording import segment
from gateway.identity import episode_id_of

router = APIRouter(prefix=f"{ROOT}/find")
PLACES: Final = {"grp-": "groups", "batch-": "training", "key-": "keys"}
Id = Annotated[str, Query(max_length=256, pattern=r"^[^\x00]*$")]


@router.get("")
async def find(viewer: ViewerOf, id: Id = "") -> Response:
    """The way there."""
    del viewer
    return RedirectResponse(f"{ROOT}/{path_of(id.strip())}", 303)


def path_of(name: str) -> str:
    """Where the page of an id is.

    >>> path_of("grp-1"), path_of("my run/7"), path_of("")
    ('groups/grp-1', 'episodes/my%20run%2F7', 'episodes')
    """
    if not name:
        return "episodes"
    episode_id = episode_id_of(name)
    if episode_id is not None:
        return f"episodes/{segment(episode_id)}/calls/{segment(name)}"
    place = next((place for begin, place in PLACES.items() if name.startswith(begin)), "episodes")
    return f"{place}/{segment(name)}"
