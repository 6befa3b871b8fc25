"""How a page is rendered: templates in the frame that all share, and the words for what went wrong.

Every value is escaped by the environment, an unknown one is a bug, and nothing but our own drawings is `Markup`. Where
htmx asks for one part of a page (its target's id names a block of the template), that block alone is rendered: a live
part and the whole page are one template. What a page shows is left to `pages/`, who may see it to `access.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from fastapi import Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from starlette.responses import HTMLResponse, Response

from gateway.dashboard import wording
from gateway.dashboard.access import Viewer

HERE: Final = Path(__file__).parent
ROOT: Final = "/dashboard"
NAV: Final = (
    ("Overview", ROOT, False),
    ("Runs", f"{ROOT}/runs", False),
    ("Groups", f"{ROOT}/groups", False),
    ("Episodes", f"{ROOT}/episodes", False),
    ("Policies", f"{ROOT}/policies", False),
    ("Training", f"{ROOT}/training", False),
    ("Engines", f"{ROOT}/engines", False),
    ("Keys", f"{ROOT}/keys", False),
    ("Audit", f"{ROOT}/audit", True),
    ("Settings", f"{ROOT}/settings", True),
)
"""Name, path, and whether only an administrator gets there."""


def templates() -> Environment:
    """The environment of every page. `m` is what `_macros.html` defines: a block that is rendered alone has it too."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shared = cast("dict[str, Any]", made.globals)
    cast("dict[str, Any]", made.filters).update(wording.FILTERS)
    marks = {path.name: _mark(path) for path in (HERE / "static").iterdir()}

    def static(name: str) -> str:
        return f"{ROOT}/static/{name}?v={marks[name]}"

    shared["static"] = static
    shared["m"] = made.get_template("_macros.html").module
    return made


def page(request: Request, viewer: Viewer | None, template: str, /, status: int = 200, **values: Any) -> Response:
    """A page, or the one block of it that htmx asks for."""
    made: Environment = request.app.state.templates
    found = made.get_template(template)
    told = {**values, "viewer": viewer, "path": request.url.path, "nav": _nav(request.url.path, viewer)}
    block = fragment(request)
    if block is not None and block in found.blocks:
        return _html(_block(found, block, told), status)
    return _html(found.render(told), status)


def fragment(request: Request, *known: str) -> str | None:
    """The block that htmx asks for, if it is one of those that are read apart; `None` where all is to be read."""
    asked = request.headers.get("hx-target", "").replace("-", "_")
    return asked if request.headers.get("hx-request") == "true" and (asked in known or not known) else None


def error_page(request: Request, viewer: Viewer | None, status: int, title: str, message: str) -> Response:
    """What went wrong, in the frame."""
    made: Environment = request.app.state.templates
    told = {"viewer": viewer, "path": request.url.path, "nav": _nav(request.url.path, viewer)}
    shown = made.get_template("error.html").render(told, status=status, what=title, message=message)
    return _html(shown, status)


def _html(text: str, status: int) -> Response:
    """What is no character (a lone surrogate, which agents may send) is shown as a question mark."""
    return HTMLResponse(text.encode("utf-8", "replace"), status)


def _block(template: Template, block: str, told: Mapping[str, Any]) -> str:
    return "".join(template.blocks[block](template.new_context(dict(told))))


def _nav(path: str, viewer: Viewer | None) -> list[dict[str, Any]]:
    if viewer is None:
        return []
    here = max((to for _, to, _ in NAV if path == to or path.startswith(f"{to}/")), key=len, default="")
    return [
        {"name": name, "path": to, "is_here": to == here}
        for name, to, is_admins in NAV
        if viewer.is_admin or not is_admins
    ]


def _mark(path: Path) -> str:
    """Changes with the file: a browser keeps each for as long as it is that."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
