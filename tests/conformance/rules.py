"""What a rule is: a sentence, the case of `cases.md` it stands for, and a scripted agent that tries it out.

    @rule("an engine's 503 is a 503", case="C10")
    async def refusal(scene: Scene) -> None: ...

    @rule("{0}: an engine's 503 is a 503", each={"chat": CHAT, "messages": MESSAGES})
    async def refusal(scene: Scene, form: Form) -> None: ...

A rule fails by an `AssertionError`; it does not apply (`n/a`) where it needs what a gateway does not have.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tests.conformance.scene import Scene

Agent = Callable[..., Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line of the report."""

    name: str
    agent: Agent
    case: str = ""
    needs: tuple[str, ...] = ()
    """What of a gateway it is about, as `capabilities.py` names it; without it the rule is n/a."""
    arguments: tuple[Any, ...] = ()
    area: str = ""
    alone: bool = False
    """It changes what other rules would see, or measures time: nothing runs beside it."""
    timeout_s: float = 30.0

    async def run(self, scene: Scene) -> None:
        await self.agent(scene, *self.arguments)


@dataclass(frozen=True, slots=True)
class Family:
    """What `rule` makes of a function: one rule, or one for each sibling."""

    rules: tuple[Rule, ...]


def rule(
    name: str,
    *,
    case: str = "",
    needs: Iterable[str] = (),
    each: Mapping[str, Any] | None = None,
    alone: bool = False,
    timeout_s: float = 30.0,
) -> Callable[[Agent], Family]:
    """Make a rule of an agent; with `each`, one for every sibling, which it gets as its second argument."""

    def made(agent: Agent) -> Family:
        siblings: Mapping[str, tuple[Any, ...]] = {"": ()} if each is None else {k: (v,) for k, v in each.items()}
        area = agent.__module__.rpartition(".")[2]
        return Family(
            tuple(
                Rule(
                    name=_named(name, label),
                    agent=agent,
                    case=case,
                    needs=(*needs, *_needs_of(arguments)),
                    arguments=arguments,
                    area=area,
                    alone=alone,
                    timeout_s=timeout_s,
                )
                for label, arguments in siblings.items()
            )
        )

    return made


def rules_of(modules: Iterable[ModuleType]) -> list[Rule]:
    """Every rule of these modules, in the order in which it stands there."""
    families = [value for module in modules for value in vars(module).values() if isinstance(value, Family)]
    found = [one for family in families for one in family.rules]
    names = [one.name for one in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"two rules have one name: {sorted(twice)}")
    return found


def _named(name: str, label: str) -> str:
    return name.replace("{0}", label) if "{0}" in name or not label else f"{name} ({label})"


def _needs_of(arguments: tuple[Any, ...]) -> tuple[str, ...]:
    """A sibling that is a dialect, or has one, needs it."""
    return tuple(need for argument in arguments if (need := getattr(argument, "need", None)) is not None)
