"""Containerfiles: pinned, not root, of files that exist, starting commands that Hone has."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gateway.cli import app
from tests.deploy.files import DEPLOY, ROOT
from tests.deploy.settings import known_variables

FILES = sorted((DEPLOY / "containers").glob("*.Containerfile"))


def instructions(path: Path) -> list[tuple[str, str]]:
    """Each instruction with its text, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE))
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in text.splitlines() if line]


def names(path: Path) -> str:
    return path.name.removesuffix(".Containerfile")


@pytest.mark.parametrize("path", FILES, ids=names)
def test_a_base_is_pinned_and_the_last_user_is_not_root(path: Path) -> None:
    found = instructions(path)
    bases = [text.split(" ")[0] for name, text in found if name == "FROM"]
    assert all(re.fullmatch(r"docker\.io/[\w/-]+:v?\d+\.\d+(?:\.\d+)?(-[\w-]+)?", base) for base in bases)
    assert [text for name, text in found if name == "USER"] == ["10001:10001"]


@pytest.mark.parametrize("path", FILES, ids=names)
def test_what_is_copied_exists_and_holds_no_secret(path: Path) -> None:
    for name, text in instructions(path):
        assert name not in ("ADD", "ARG")
        if name == "COPY" and not text.startswith("--from="):
            for source in text.split(" ")[:-1]:
                assert (ROOT / source).exists()
                assert not source.startswith(".")
        if name == "ENV":
            assert not re.search(r"(KEY|PASSWORD|SECRET|TOKEN)=", text)


@pytest.mark.parametrize("path", FILES, ids=names)
def test_it_knows_whether_it_is_well(path: Path) -> None:
    (check,) = [text for name, text in instructions(path) if name == "HEALTHCHECK"]
    command = check.partition("CMD ")[2]
    if command.startswith("["):
        compile(json.loads(command)[2], path.name, "exec")


@pytest.mark.parametrize("path", FILES, ids=names)
def test_its_variables_of_ours_are_settings(path: Path) -> None:
    used = {name for _, text in instructions(path) for name in re.findall(r"\b(HONE_\w+)=", text)}
    assert used <= known_variables()


def test_commands_are_commands_of_hone() -> None:
    started = {}
    for path in FILES:
        for name, text in instructions(path):
            if name == "CMD":
                started[names(path)] = json.loads(text)
    assert started == {"gateway": ["hone", "gateway"], "trainer": ["hone", "train"]}
    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert {name for _, name in started.values()} <= known


def test_the_packages_that_are_copied_are_those_that_are_installed() -> None:
    for path in FILES:
        copied = {text.split(" ")[0] for name, text in instructions(path) if name == "COPY" and "--from" not in text}
        if "gateway" in copied:
            assert {"gateway", "tracker", "trainer", "migrations"} <= copied
