"""All rules, by area."""

from __future__ import annotations

from tests.conformance import answers, faults, merging, requests, streaming, tokens
from tests.conformance.rules import Rule, rules_of

AREAS = (streaming, faults, requests, answers, tokens, merging)


def all_rules() -> list[Rule]:
    return rules_of(AREAS)
