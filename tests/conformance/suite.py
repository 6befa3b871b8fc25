"""All rules, by area."""

from __future__ import annotations

from tests.conformance import (
    answers,
    episodes,
    faults,
    groups,
    implicit,
    merging,
    messages,
    requests,
    responses,
    rewards,
    sampling,
    security,
    streaming,
    swap,
    tokens,
)
from tests.conformance.rules import Rule, rules_of

AREAS = (
    streaming,
    faults,
    requests,
    answers,
    responses,
    messages,
    sampling,
    tokens,
    merging,
    rewards,
    groups,
    episodes,
    implicit,
    security,
    swap,
)


def all_rules() -> list[Rule]:
    return rules_of(AREAS)
