"""Whether an agent's run was as it must be: what the agent got, and what Hone kept of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tests.agents.cast import Agent

Json = dict[str, Any]
BUSY: Final = 503
"""What a machine under load may be told, and agents try again: nothing was recorded, nothing is lost."""
LEFT: Final = 0
"""What an agent got that left before its answer began."""
RECORDED: Final = ("/chat/completions", "/completions", "/responses", "/messages")


def complaints(agent: Agent, report: Json) -> list[str]:
    """Everything amiss with a run; none if it passed."""
    if agent.fails:
        return [] if report["status"] != 0 and agent.says in report["output"] else ["it does not fail as it is told to"]
    return [*_of_the_agent(agent, report), *_of_the_record(agent, report)]


def _of_the_agent(agent: Agent, report: Json) -> Iterator[str]:
    if report["status"] != 0:
        yield f"it ended with status {report['status']}: {report['output'].strip()[-400:]}"
    if agent.says not in report["output"]:
        yield f"it said {report['output'].strip()[-200:]!r}, not {agent.says!r}"
    for name, text in agent.writes.items():
        if report["files"].get(name, "").strip() != text:
            yield f"its file {name} has {report['files'].get(name)!r}, not {text!r}"
    for exchange in report["exchanges"]:
        if exchange["status"] == LEFT and exchange is report["exchanges"][-1]:
            continue  # it ended meanwhile: a sub-agent's call that its main agent did not wait for
        if exchange["method"] == "POST" and exchange["status"] not in (200, BUSY):
            asked = f"{exchange['method']} {exchange['path']}"
            yield f"{asked} was answered {exchange['status']}: {exchange['answer'][:300]}"


def _of_the_record(agent: Agent, report: Json) -> Iterator[str]:
    asked = [e for e in report["exchanges"] if e["path"].partition("?")[0].endswith(RECORDED) and e["status"] != BUSY]
    num_asked = len(asked)
    if len(report["episodes"]) != 1:
        yield f"{num_asked} calls became {len(report['episodes'])} episodes, not one"
        return
    calls, samples = report["episodes"][0]["calls"], report["episodes"][0]["samples"]
    if not num_asked == len(calls) == (agent.num_calls or num_asked):
        yield f"{num_asked} requests became {len(calls)} calls; {agent.num_calls} were expected"
    if len(samples["samples"]) != agent.num_rows:
        yield f"there are {len(samples['samples'])} rows, not {agent.num_rows}"
    constrained = [out for out in samples["excluded"] if out["reason"] == "not_policy_distribution"]
    if len(constrained) != agent.num_constrained:
        yield f"{len(constrained)} calls were forced into a form, not {agent.num_constrained}"
    for out in samples["excluded"]:
        if out["reason"] not in ("not_policy_distribution", "role"):
            yield f"the call {out['call_id']} is excluded: {out['reason']}"
