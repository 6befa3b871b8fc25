"""Alerts and the dashboard ask only for metrics that are really there, by labels that they really have."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from tests.deploy.files import DEPLOY, compose, series

RULES = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
SCRAPES = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
BOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "hone.json").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
ASKED = [rule["expr"] for rule in ALERTS] + [target["expr"] for panel in PANELS for target in panel["targets"]]
FROM_PROMETHEUS = {"up"}
WORDS = {"sum", "min", "max", "abs", "by", "on", "and", "rate", "increase", "time", "histogram_quantile"}


def selectors(asked: str) -> dict[str, set[str]]:
    """Metric -> the labels that are compared."""
    found: dict[str, set[str]] = {}
    for name, matchers in re.findall(r"\b(hone_\w+|up)\b(?:\{([^}]*)\})?", asked):
        found.setdefault(name, set()).update(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
    return found


@pytest.mark.parametrize("asked", ASKED)
def test_an_expression_asks_for_metrics_and_labels_that_are_there(asked: str) -> None:
    known = series()
    found = selectors(asked)
    assert found
    for name, labels in found.items():
        if name not in FROM_PROMETHEUS:
            assert name in known
            assert labels <= known[name]


@pytest.mark.parametrize("asked", ASKED)
def test_an_expression_is_well_formed_and_groups_by_labels_that_are_there(asked: str) -> None:
    assert asked.count("(") == asked.count(")")
    labels = {label for name in selectors(asked) for label in series().get(name, set())}
    for grouped in re.findall(r"\bby \(([^)]*)\)", asked):
        assert {part.strip() for part in grouped.split(",")} <= labels
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\bby \([^)]*\)|\[[^\]]*\]|\bhone_\w+|\bup\b|[0-9.]+', " ", asked)
    assert set(re.findall(r"[a-z_]+", bare)) <= WORDS


def test_every_metric_is_shown_on_the_dashboard_or_raises_an_alert() -> None:
    used = {name for asked in ASKED for name in selectors(asked)}
    base = {re.sub(r"_(bucket|sum|count)$", "", name) for name in series()}
    assert base <= {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}


def test_alerts_have_names_of_their_own_and_say_what_to_do() -> None:
    names = [rule["alert"] for rule in ALERTS]
    assert len(set(names)) == len(names)
    for rule in ALERTS:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]
        told = re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])
        kept = {label for name in selectors(rule["expr"]) for label in series().get(name, {"instance"})}
        assert set(told) <= kept


def test_panels_stand_beside_each_other_and_ask_the_provisioned_source() -> None:
    source = yaml.safe_load((DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml").read_text())
    uid = source["datasources"][0]["uid"]
    places = [tuple(panel["gridPos"].values()) for panel in BOARD["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    assert all(target["datasource"]["uid"] == uid for panel in PANELS for target in panel["targets"])


def test_prometheus_scrapes_services_of_compose_with_a_secret_that_is_there() -> None:
    services = compose()["services"]
    for job in SCRAPES["scrape_configs"]:
        for target in job["static_configs"][0]["targets"]:
            assert target.rpartition(":")[0] in services
    credentials = SCRAPES["scrape_configs"][0]["authorization"]["credentials_file"]
    assert credentials.removeprefix("/run/secrets/") in services["prometheus"]["secrets"]
    assert SCRAPES["rule_files"] == ["/etc/prometheus/rules.yml"]
