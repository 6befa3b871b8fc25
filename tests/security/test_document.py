"""`SECURITY.md` names tests and settings that are there."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.settings import GatewaySettings

ROOT = Path(__file__).parents[2]
WORDS = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(tests/[\w/.]+)`", WORDS))
    assert len(named) > 10
    assert [path for path in sorted(named) if not (ROOT / path).is_file()] == []


def test_every_setting_that_is_named_exists() -> None:
    named = {name.lower() for name in re.findall(r"HONE_([A-Z_]+)", WORDS)}
    assert named - set(GatewaySettings.model_fields) == set()


def test_every_link_leads_somewhere() -> None:
    for path, anchor in re.findall(r"\]\(([\w/.]+)#([\w-]+)\)", WORDS):
        headings = re.findall(r"^#+ (.+)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
        assert anchor in {heading.lower().replace(" ", "-") for heading in headings}, (path, anchor)
