"""docs/agents.md quotes the recipes that are tried and the table that was measured, word for word."""

from __future__ import annotations

import json
import re

from bench.agents import RESULTS, line
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


def test_the_table_is_what_was_measured() -> None:
    rows = json.loads(RESULTS.read_text())
    assert [row["agent"] for row in rows] == [agent.name for agent in CAST]
    assert all(f"{line(row)}\n" in PAGE for row in rows)
