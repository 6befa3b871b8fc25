"""All rules, by area."""

from __future__ import annotations

from tests.conformance import streaming
from tests.conformance.rules import Rule, rules_of

AREAS = (streaming,)


def all_rules() -> list[Rule]:
    return rules_of(AREAS)
