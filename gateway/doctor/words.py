"""How a rehearsal is told: as tables for people, as JSON for programs. Pure beside the console it writes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gateway.doctor.drift import Step, StepKind
from gateway.doctor.report import Refusal, Report, refusals_of
from tracker.types import Reason, Record

NUM_SHOWN: Final = 20
"""Rows of one table."""
MAX_TEXT: Final = 40
ADVICE: Final[Mapping[str, str]] = {
    Reason.NO_IDS: "the engine gave no token ids",
    Reason.NO_PROMPT_IDS: "the engine gave no ids of the prompt",
    Reason.IDS_USAGE_MISMATCH: "the engine's ids and its usage disagree",
    Reason.IDS_LOGPROBS_MISMATCH: "the engine's ids and log-probabilities disagree",
    Reason.BAD_LOGPROB: "a log-probability is missing or no number",
    Reason.UPSTREAM_FAILED: "the engine failed",
    Reason.CONTEXT_LIMIT: "the context did not fit: shorten the history, or take a longer context",
    Reason.CLIENT_GONE: "the agent left before the answer had come",
    Reason.SUPERSEDED: "the agent retried: the attempt it never saw is left out",
    Reason.AMBIGUOUS_RETRY: "a retry that fits several attempts",
    Reason.LOST: "the call never ended",
    Reason.STALE: "the version was left behind",
    Reason.NOT_POLICY_DISTRIBUTION: "structured output, a forced tool or sampling that no trainer can recompute; "
    "constrained: train or sampling: policy in the run",
    Reason.ROLE: "the run does not train this role (roles)",
    Reason.IMAGES: "images, sound or video in the request",
    Reason.UNRECORDED: "not recorded",
}


SPLIT: Final = (
    "{} of them changed the model's own words so that the call could not be told to go on from the earlier one, and "
    "opened another episode: name the episode (a session key, a header), or a session field in episode_from."
)


class Difference(Record, frozen=True):
    """Where a call left an earlier one, in words; `None` where the engine could not say them."""

    step: Step
    before: str | None
    stored_token: str | None
    stored: str | None
    new_token: str | None
    new: str | None


def as_json(report: Report, differences: Sequence[Difference]) -> dict[str, Any]:
    """Everything that is told, for programs."""
    return {
        "trainable": report.is_trainable,
        "reasons": report.reasons,
        "exit_status": report.seen.exit_status,
        "engine": report.seen.engine,
        "requests": report.seen.paths,
        "num_episodes": len(report.seen.episodes),
        "num_calls": report.num_calls,
        "num_text_calls": report.num_text_calls,
        "cost": report.cost,
        "dialects": report.dialects,
        "models": report.models,
        "roles": report.roles,
        "refused": [_refused(refusal, count) for refusal, count in refusals_of(report.seen.refusals).items()],
        "not_honoured": [
            {"field": one.field, "asked": one.asked, "sent": one.sent, "num_calls": count}
            for one, count in report.overridden
        ],
        "steps": {kind.value: sum(step.kind is kind for step in report.steps) for kind in StepKind},
        "num_split": len(report.split),
        "drift": [_drift(each) for each in differences if each.step.kind is StepKind.DRIFTS],
        "forks": [_drift(each) for each in differences if each.step.kind is StepKind.FORKS],
        "num_sampled_tokens": report.num_sampled,
        "num_trained_tokens": report.num_trained,
        "trained_share": report.share,
        "not_trained": {
            reason: {"num_calls": left.num_calls, "num_tokens": left.num_tokens} for reason, left in report.left.items()
        },
        "num_rows": report.num_rows,
        "num_samples": report.num_samples,
        "rows_per_episode": _per_episode(report),
        "num_raw_tokens": report.num_raw_tokens,
        "num_distinct_tokens": report.num_distinct_tokens,
        "trie_ratio": report.trie_ratio,
        "num_retries": report.num_retries,
        "num_superseded": report.num_superseded,
    }


def show(console: Console, report: Report, differences: Sequence[Difference]) -> None:
    """Write the tables and the verdict."""
    console.print()
    console.print(_summary(report))
    for table in (_not_trained(report), _refusals(report), _not_honoured(report), _drifts(differences)):
        if table.row_count:
            console.print(table)
    if report.split:
        console.print(SPLIT.format(len(report.split)), highlight=False)
    if report.is_trainable:
        console.print(f"[bold green]trainable[/]: {report.share:.0%} of the sampled tokens", highlight=False)
    else:
        console.print(f"[bold red]not trainable[/]: {escape('; '.join(report.reasons))}", highlight=False)


def _summary(report: Report) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    upstreams = f", and {report.num_text_calls} to models that are no policy" if report.num_text_calls else ""
    steps = [f"{count} {kind}" for kind in StepKind if (count := sum(s.kind is kind for s in report.steps))]
    tries = f"{report.num_raw_tokens} tokens in rows, {report.num_distinct_tokens} distinct: {report.trie_ratio:.3g} ×"
    lines = {
        "exit status": str(report.seen.exit_status),
        "engine": report.seen.engine,
        "requests": _told(report.seen.paths),
        "dialects": _told(report.dialects),
        "models": _told(report.models),
        "roles": _told(report.roles),
        "calls": f"{report.num_calls} in {len(report.seen.episodes)} episodes{upstreams}",
        "cost": "" if report.cost is None else f"{report.cost:g}",
        "histories": ", ".join(steps),
        "tokens": f"{report.num_trained} of {report.num_sampled} sampled ones trained ({report.share:.0%})",
        "rows": f"{report.num_rows} ({_per_episode(report):.3g} an episode), merged into {report.num_samples} samples",
        "trie": tries,
        "retries": f"{report.num_retries}, {report.num_superseded} attempts left out" if report.num_retries else "0",
    }
    for name, text in lines.items():
        if text:
            table.add_row(name, escape(text))
    return table


def _not_trained(report: Report) -> Table:
    table = Table("reason", "calls", "tokens", "what it means", title="Not trained", title_justify="left")
    for reason, left in report.left.items():
        table.add_row(reason, str(left.num_calls), str(left.num_tokens), ADVICE.get(reason, ""))
    return table


def _refusals(report: Report) -> Table:
    table = Table("request", "status", "times", "field", "message", title="Refused", title_justify="left")
    for refusal, count in list(refusals_of(report.seen.refusals).items())[:NUM_SHOWN]:
        table.add_row(
            escape(refusal.path), str(refusal.status), str(count), escape(refusal.param or ""), escape(refusal.message)
        )
    return table


def _not_honoured(report: Report) -> Table:
    title = "Not honoured on trained calls"
    table = Table("field", "asked", "sent", "calls", title=title, title_justify="left")
    for one, count in report.overridden[:NUM_SHOWN]:
        table.add_row(one.field, escape(one.asked), one.sent, str(count))
    return table


def _drifts(differences: Sequence[Difference]) -> Table:
    title = "Drift: the first token that differs from what was stored"
    table = Table("call", "at token", "in", "after", "stored", "now", title=title, title_justify="left")
    for each in [each for each in differences if each.step.kind is StepKind.DRIFTS][:NUM_SHOWN]:
        place = each.step.place
        assert place is not None
        table.add_row(
            escape(each.step.call_id[-8:]),
            f"{place.position} of {place.num_stored}",
            "an answer" if place.in_answer else "the prompt",
            escape(_shown(each.before, place.before, from_end=True)),
            escape(f"{_token(each.stored_token, place.stored)} {_shown(each.stored, place.stored)}"),
            escape(f"{_token(each.new_token, place.new)} {_shown(each.new, place.new)}"),
        )
    return table


def _drift(each: Difference) -> dict[str, Any]:
    place = each.step.place
    assert place is not None
    return {
        "call_id": each.step.call_id,
        "extends": place.call_id,
        "position": place.position,
        "num_stored": place.num_stored,
        "in_answer": place.in_answer,
        "before": each.before,
        "stored": {"id": place.stored[0] if place.stored else None, "token": each.stored_token, "text": each.stored},
        "new": {"id": place.new[0] if place.new else None, "token": each.new_token, "text": each.new},
    }


def _refused(refusal: Refusal, count: int) -> dict[str, Any]:
    return {
        "request": refusal.path,
        "status": refusal.status,
        "param": refusal.param,
        "message": refusal.message,
        "times": count,
    }


def _token(text: str | None, ids: Sequence[int]) -> str:
    """One token as people read it: its text with spaces seen, and its id."""
    if not ids:
        return "(end)"
    return f"{ids[0]}" if text is None else f"{ids[0]} {text!r}:"


def _shown(text: str | None, ids: Sequence[int], *, from_end: bool = False) -> str:
    if text is None:
        return str(list(ids))
    cut = text[-MAX_TEXT:] if from_end else text[:MAX_TEXT]
    return repr(cut)


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} × {count}" for name, count in counts.items())


def _per_episode(report: Report) -> float:
    return report.num_rows / len(report.seen.episodes) if report.seen.episodes else 0.0
