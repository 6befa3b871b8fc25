"""docs/agents.md quotes the recipes that are tried, word for word, and has a line for every agent."""

from __future__ import annotations

import re

from tests.agents.coders import CAST
from tests.agents.environments import HERE, ROOT

PAGE = (ROOT / "docs" / "agents.md").read_text()
BLOCK = re.compile(r"\[`[^`]+`\]\(\.\./tests/agents/(recipes/[^)]+)\):\n\n```\w+\n(.*?)```\n", re.DOTALL)


def test_every_block_is_a_recipe_that_is_tried() -> None:
    quoted = dict(BLOCK.findall(PAGE))
    assert len(quoted) == len(re.findall(r"```(?:python|sh)\n", PAGE))
    tried = {agent.recipe for agent in CAST}
    for recipe, text in quoted.items():
        assert recipe in tried
        assert text == (HERE / recipe).read_text()


def test_every_recipe_is_in_the_page_and_tried() -> None:
    recipes = {f"recipes/{path.name}" for path in (HERE / "recipes").glob("*.*")}
    assert recipes <= {agent.recipe for agent in CAST}
    assert all(f"(../tests/agents/{recipe})" in PAGE for recipe in recipes)


def test_the_table_has_every_agent_that_is_tried() -> None:
    for agent in CAST:
        result = "fail" if agent.fails else "pass"
        assert re.search(
            rf"^\| {agent.name} \| [0-9.]+ \| {agent.dialect} \| {result} \| {re.escape(agent.note)} \|$",
            PAGE,
            re.MULTILINE,
        ), agent.name
