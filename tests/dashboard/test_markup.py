"""What stands in templates and in pages: nothing that runs or styles by itself, and what readers of screens need."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from gateway.dashboard.frame import HERE, templates
from tests.dashboard.places import places
from tests.dashboard.stage import Stage

TEMPLATES = sorted((HERE / "templates").glob("*.html"))
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
DRAWN = {"path", "rect", "circle", "line"}
OURS = re.compile(r"^(/dashboard|#|\?|$)")


class Markup(HTMLParser):
    """A page as its elements: (name, attributes), and what is wrong with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.wrong: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.elements.append((tag, given))
        self.wrong += [f"<{tag} {name}>" for name in given if is_active(name, given[name])]
        if len(given) != len(attrs):
            self.wrong.append(f"<{tag}> has an attribute twice")
        if tag not in VOID | DRAWN:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID | DRAWN:
            return
        if not self._open or self._open.pop() != tag:
            self.wrong.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("script", "style") and data.strip():
            self.wrong.append(f"{self._open[-1]} in the page: {data.strip()[:60]}")

    def all(self, *names: str) -> list[dict[str, str]]:
        return [given for tag, given in self.elements if tag in names]


def is_active(name: str, value: str) -> bool:
    """Whether an attribute runs or styles something by itself."""
    lowered = value.strip().lower()
    return (
        name == "style"
        or name.startswith(("on", "hx-on", "hx-vals", "hx-headers"))
        or lowered.startswith(("javascript:", "data:", "vbscript:"))
        or (name == "hx-trigger" and "[" in value)
    )


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_template_has_script_or_style_in_it_or_trusts_a_value(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle\s*=|\son[a-z]+\s*=|\shx-on|javascript:", text, re.IGNORECASE)
    assert not re.search(r"<script(?![^>]*\ssrc=\"\{\{ static\()", text)
    assert not re.search(r"\|\s*safe\b|autoescape|Markup", text)
    for link in re.findall(r'(?:href|action|src)="([^"]*)"', text):
        assert OURS.match(link) or link.startswith(("{{", "{%")), link


def test_every_template_is_one_that_can_be_rendered() -> None:
    made = templates()
    for path in TEMPLATES:
        made.get_template(path.name)


@pytest.mark.slow
def test_every_page_is_sound(stage: Stage, http: Callable[..., httpx.Client]) -> None:
    client = http("admin")
    for path in [*places(stage), "/dashboard/none"]:
        assert_sound(path, Markup(client.get(path).text))
    for path in ("/dashboard/login", "/dashboard/login?next=/dashboard/runs"):
        assert_sound(path, Markup(http(None).get(path).text))


def assert_sound(path: str, page: Markup) -> None:
    assert page.wrong == [], path
    for given in page.all("script"):
        assert given["src"].startswith("/dashboard/static/"), path
    for given in page.all("a", "form", "link"):
        assert OURS.match(given.get("href", given.get("action", ""))), (path, given)
    assert len(page.all("h1")) == len(page.all("main")) == 1, path
    assert [given for given in page.all("th") if given.get("scope") not in ("col", "row")] == [], path
    ids = Counter(given["id"] for _, given in page.elements if "id" in given)
    assert [name for name, number in ids.items() if number > 1] == [], path
    labelled = {given.get("for") for given in page.all("label")}
    fields = [given for given in page.all("input", "select") if given.get("type") not in ("hidden", "checkbox")]
    assert [given for given in fields if given.get("id") not in labelled and "aria-label" not in given] == [], path


@pytest.mark.slow
def test_every_form_that_is_posted_carries_the_token(stage: Stage, http: Callable[..., httpx.Client]) -> None:
    client = http("admin")
    for path in places(stage):
        for form in re.findall(r"<form.*?</form>", client.get(path).text, re.DOTALL):
            is_posted = re.search(r'^<form[^>]*method="post"', form) is not None
            assert ('name="csrf"' in form) == is_posted, (path, form[:200])


@pytest.mark.slow
def test_a_part_of_a_page_is_that_part_alone(stage: Stage, http: Callable[..., httpx.Client]) -> None:
    client = http("read")
    for path, part in (
        ("/dashboard", "health"),
        ("/dashboard", "learning"),
        ("/dashboard", "costs"),
        ("/dashboard/runs/sums", "state"),
        ("/dashboard/engines", "engines"),
    ):
        whole = client.get(path).text
        found = client.get(path, headers={"HX-Request": "true", "HX-Target": part})
        assert found.status_code == 200
        assert "<html" not in found.text
        assert f'id="{part}"' in whole
        assert Markup(found.text).wrong == []
    strange = client.get("/dashboard", headers={"HX-Request": "true", "HX-Target": "none"})
    assert "<html" in strange.text
