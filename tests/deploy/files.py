"""What lies in deploy/, read as its programs would read it: compose's variables replaced, units taken apart."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gateway.metrics import Metrics

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = DEPLOY / "systemd"
Json = dict[str, Any]
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def replaced(text: str, values: Mapping[str, str]) -> str:
    """Compose's `${NAME:-default}`, and `$$` for one dollar."""
    found = _VARIABLE.sub(lambda match: values.get(match[1]) or match[2] or "", text)
    return found.replace("$$", "$")


def compose(**values: str) -> Json:
    """The file as compose reads it: variables are replaced in what was parsed."""
    return _each_text(yaml.safe_load((DEPLOY / "compose.yml").read_text()), values)


def _each_text(node: Any, values: Mapping[str, str]) -> Any:
    match node:
        case str():
            return replaced(node, values)
        case dict():
            return {key: _each_text(value, values) for key, value in node.items()}
        case list():
            return [_each_text(value, values) for value in node]
        case _:
            return node


@cache
def manifests() -> list[Json]:
    """Every object of the kustomize base, in the order of its files."""
    base = DEPLOY / "kubernetes"
    listed = yaml.safe_load((base / "kustomization.yaml").read_text())["resources"]
    return [item for name in listed for item in yaml.safe_load_all((base / name).read_text()) if item]


def kustomization() -> Json:
    return yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())


@dataclass(frozen=True)
class Unit:
    """A systemd unit: (section, key) -> its values in order."""

    name: str
    values: dict[tuple[str, str], list[str]]

    def all(self, section: str, key: str) -> list[str]:
        return self.values.get((section, key), [])

    def command(self, env: Mapping[str, str]) -> list[str]:
        """What ExecStart runs, with systemd's `${NAME}` replaced."""
        (line,) = self.all("Service", "ExecStart")
        return [_VARIABLE.sub(lambda match: env[match[1]], word) for word in shlex.split(line)]


def unit(name: str) -> Unit:
    values: dict[tuple[str, str], list[str]] = {}
    section = ""
    for line in (UNITS / name).read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            section = line.strip("[]")
            continue
        key, _, value = line.partition("=")
        values.setdefault((section, key), []).append(value)
    return Unit(name, values)


def unit_env() -> dict[str, str]:
    lines = (UNITS / "hone.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def workloads() -> Iterator[tuple[str, Json, Json]]:
    """Name, object and its one container."""
    for item in manifests():
        if item["kind"] in ("Deployment", "StatefulSet", "Job"):
            (container,) = item["spec"]["template"]["spec"]["containers"]
            yield item["metadata"]["name"], item, container


@cache
def series() -> dict[str, set[str]]:
    """Every name that a page of metrics may have, with its labels."""
    found: dict[str, set[str]] = {}
    for listed in Metrics().listed:
        labels = set(listed.labels)
        if listed.kind == "histogram":
            found |= {f"{listed.name}_bucket": {*labels, "le"}, f"{listed.name}_sum": labels}
            found[f"{listed.name}_count"] = labels
        else:
            found[listed.name] = labels
    return found
