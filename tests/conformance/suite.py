"""All rules, by area."""

from __future__ import annotations

from tests.conformance import (
    answers,
    cutting,
    episodes,
    faults,
    groups,
    implicit,
    leaving,
    merging,
    messages,
    requests,
    responses,
    retries,
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
    cutting,
    faults,
    leaving,
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
    retries,
    implicit,
    security,
    swap,
)


def all_rules() -> list[Rule]:
    return rules_of(AREAS)
