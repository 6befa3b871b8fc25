"""What a model name means: policies first, then models of upstreams, exact names before patterns."""

from __future__ import annotations

import pytest

from gateway.routing import PolicyRoute, UpstreamModels, UpstreamRoute, find_route
from tracker.errors import NotFound

SOLVER = PolicyRoute(name="solver", aliases=("my-model",))
CHECKER = PolicyRoute(name="checker")
OPENAI = UpstreamModels(upstream="openai", url="https://o/v1", models=("gpt-4o-mini", "gpt-*"))
OTHERS = UpstreamModels(upstream="others", url="https://x/v1", models=("*", "gpt-4*"))


@pytest.mark.parametrize(
    ("model", "upstream"),
    [("gpt-4o-mini", "openai"), ("gpt-3", "openai"), ("gpt-4.1", "others"), ("claude", "others"), ("gpt-", "openai")],
)
def test_an_exact_name_wins_over_patterns_and_a_longer_pattern_over_a_shorter(model: str, upstream: str) -> None:
    route = find_route(model, [SOLVER], [OTHERS, OPENAI])
    assert isinstance(route, UpstreamRoute)
    assert (route.name, route.upstream) == (model, upstream)


def test_a_policy_wins_over_patterns() -> None:
    assert find_route("solver", [SOLVER], [OTHERS]) is SOLVER
    assert find_route("my-model", [SOLVER], [OTHERS]) is SOLVER


def test_with_one_policy_and_no_upstreams_any_name_means_that_policy() -> None:
    assert find_route("gpt-4o", [SOLVER]) is SOLVER


@pytest.mark.parametrize("policies", [[SOLVER], [SOLVER, CHECKER]])
def test_a_name_that_nobody_serves_is_refused_with_those_there_are(policies: list[PolicyRoute]) -> None:
    with pytest.raises(NotFound) as refused:
        find_route("claude", policies, [OPENAI])
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
    for name in ("solver", "my-model", "gpt-4o-mini", "gpt-*"):
        assert name in refused.value.message


def test_only_the_star_of_a_pattern_stands_for_anything() -> None:
    dotted = UpstreamModels(upstream="u", url="https://u", models=("o.x*",))
    assert find_route("o.x1", [SOLVER, CHECKER], [dotted]).name == "o.x1"
    with pytest.raises(NotFound):
        find_route("oax1", [SOLVER, CHECKER], [dotted])
