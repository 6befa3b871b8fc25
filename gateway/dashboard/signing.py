"""Where somebody is sent to sign in, and where he goes from there: only ever to a page of the dashboard. Pure."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlencode

from fastapi import Request

HOME: Final = "/dashboard"
LOGIN: Final = "/dashboard/login"
_OURS: Final = re.compile(r"/dashboard(?:[/?][\x21-\x5b\x5d-\x7e]*)?")
"""Printable, without a backslash: browsers take one for a slash."""
MAX_CHARS: Final = 2_000


def sign_in_path(request: Request) -> str:
    """The sign-in page, which remembers what was asked for where that can be asked again."""
    asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if request.headers.get("hx-request") == "true":
        asked = _path_of(request.headers.get("hx-current-url", ""))
    elif request.method != "GET":
        asked = HOME
    target = next_page(asked)
    return LOGIN if target == HOME else f"{LOGIN}?{urlencode({'next': target})}"


def next_page(asked: str) -> str:
    """Where to go after signing in: what was asked for if it is a page of ours, else the first one.

    >>> next_page("/dashboard/runs?cursor=1"), next_page("//evil.example/dashboard"), next_page("/dashboard.evil")
    ('/dashboard/runs?cursor=1', '/dashboard', '/dashboard')
    """
    is_ours = len(asked) <= MAX_CHARS and _OURS.fullmatch(asked) is not None and "/../" not in f"{asked}/"
    return asked if is_ours and not asked.startswith(LOGIN) else HOME


def _path_of(url: str) -> str:
    """The path of the page that htmx runs on."""
    return "/" + url.split("/", 3)[3] if url.count("/") > 2 else ""
