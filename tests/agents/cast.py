"""What is said of an agent that is tried: what it runs, what the scripted engine has it do, what must come of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.agents.mind import Play


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One agent and what is expected of it."""

    name: str
    package: str
    """Whose version is told."""
    recipe: str
    """A file below this folder."""
    dialect: str
    play: Play
    says: str
    """What its output must have."""
    note: str
    """What the table in docs/agents.md says of it."""
    fails: bool = False
    """Whether it cannot work so: then its output must tell why."""
    num_calls: int | None = 2
    """How many calls it makes; `None` where that is a race between its parts."""
    num_rows: int = 1
    """How many rows they make."""
    num_constrained: int = 0
    """How many calls are excluded because the agent forces a form on them."""
    writes: Mapping[str, str] = field(default_factory=dict)
    """Files that must be there at the end."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Settings of its own, which its recipe tells in words: telemetry off."""
    in_episode: bool = True
    """Tried in an episode that was opened for it."""
    by_key: bool = False
    """Tried with an ordinary key and no episode, too."""
    run: Mapping[str, str] = field(default_factory=dict)
    """Settings of the run that its episode belongs to; default: those of the default run."""

    @property
    def kind(self) -> str:
        """The environment it needs."""
        return "python" if self.recipe.endswith(".py") else "npm"
