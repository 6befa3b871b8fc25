"""`/dashboard/static/…`: styles and scripts, the same for everybody. Their names on a page change with what is in them,
so that a browser keeps each for good."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import APIRouter
from starlette.responses import FileResponse, Response

from tracker.errors import NotFound

router = APIRouter(prefix="/dashboard/static")
FOLDER: Final = Path(__file__).parents[1] / "static"
TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FOR_GOOD: Final = "public, max-age=31536000, immutable"


@router.get("/{name}")
async def static_file(name: str) -> Response:
    """One file that a page names."""
    path = FOLDER / name
    if path.suffix not in TYPES or path.parent != FOLDER or not path.is_file():
        raise NotFound(f"There is no file {name!r}.")
    return FileResponse(path, media_type=TYPES[path.suffix], headers={"Cache-Control": FOR_GOOD})
