"""Agents as people install them, unchanged, before a real gateway: what they get, and what Hone keeps of it.

Python's frameworks and npm's coding agents know a base URL and a key, and nothing of Hone. They run where loopback is
the only network.
"""

from __future__ import annotations

import pytest

from tests.agents.cast import Agent
from tests.agents.coders import CAST
from tests.agents.conftest import Played
from tests.agents.verdict import complaints

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("agent", [agent for agent in CAST if agent.in_episode], ids=lambda agent: agent.name)
def test_it_works_as_it_comes_in_an_episode(agent: Agent, played: Played) -> None:
    assert complaints(agent, played(agent, "episode")) == []


@pytest.mark.parametrize("agent", [agent for agent in CAST if agent.by_key], ids=lambda agent: agent.name)
def test_a_base_url_and_a_key_are_enough(agent: Agent, played: Played) -> None:
    assert complaints(agent, played(agent, "key")) == []
