"""What a step was, as numbers for machines (one JSON line each) and as one line for people. Pure, but for the file."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tracker.manifests import stored_digest
from trainer.steps import Report, Step

END_BYTES: Final = 65536
"""How much of the file's end is searched for a step that was written before."""


def step_metrics(step: Step, report: Report) -> dict[str, Any]:
    """Everything that is known of a step before it is published; `None` where nothing was measured."""
    return {
        "policy": step.batch.policy,
        "step": step.batch.step,
        "epoch": step.batch.epoch,
        "batch_id": step.batch.batch_id,
        "manifest": stored_digest(step.manifest),
        "groups": step.num_groups,
        "episodes": len({row.episode_id for row in step.rows}),
        "rows": len(step.rows),
        "loss_type": step.loss,
        "branches": report.num_branches,
        "micro_batches": report.num_micro_batches,
        "trained_tokens": step.num_trained,
        "raw_tokens": report.num_raw_tokens,
        "merged_tokens": report.num_merged_tokens,
        "run_tokens": report.num_run_tokens,
        "distinct_tokens": report.num_distinct_tokens,
        "merge_ratio": report.merge_ratio,
        "trie_ratio": report.trie_ratio,
        "reward_mean": step.reward_mean,
        "call_reward_mean": step.call_reward_mean,
        "families": {family: asdict(share) for family, share in step.families.items()},
        "loss": _finite(report.loss),
        "grad_norm": _finite(report.grad_norm),
        "entropy": _finite(report.entropy),
        "kl": report.kl,
        "off_policy": report.off_policy.level,
        "off_policy_cap": report.off_policy.cap,
        "ess": _finite(report.ess),
        "capped": report.off_policy.capped,
        "lag_mean": sum(step.lags) / len(step.lags),
        "lag_max": max(step.lags),
        "gap_at_no_lag": None if report.gap_at_no_lag is None else asdict(report.gap_at_no_lag),
        "gap_by_version": {str(version): asdict(gap) for version, gap in report.gap_by_version.items()},
        "problem": report.problem or None,
        "wait_s": round(step.waited_s, 3),
        "train_s": round(report.train_s, 3),
    }


def line(metrics: dict[str, Any]) -> str:
    """One line for people."""
    version = "not published" if metrics.get("version") is None else f"version {metrics['version']}"
    reward = "-" if metrics["reward_mean"] is None else f"{metrics['reward_mean']:.3f}"
    parts = [
        f"step {metrics['step']}: {version}",
        f"reward {reward}{_of_calls(metrics)}{_by_family(metrics)}",
        f"{metrics['rows']} rows of {metrics['episodes']} episodes",
        f"{metrics['run_tokens']} tokens run of {metrics['raw_tokens']} ({metrics['trie_ratio']:.1f}x)",
        f"loss {_shown(metrics['loss'])}, gradient {_shown(metrics['grad_norm'])}",
        f"entropy {_shown(metrics['entropy'])}",
        f"lag {metrics['lag_mean']:.1f}, effective sample {_shown(metrics['ess'])} (by {metrics['off_policy']})",
        f"waited {metrics['wait_s']:.1f} s, trained {metrics['train_s']:.1f} s",
    ]
    parts += [f"published {metrics['publish_s']:.1f} s"] if "publish_s" in metrics else []
    parts += [metrics["detail"]] if metrics.get("detail") else []
    parts += [metrics["problem"]] if metrics.get("problem") else []
    return ", ".join(parts)


def _of_calls(metrics: dict[str, Any]) -> str:
    value = metrics["call_reward_mean"]
    return "" if value is None else f" and {value:.3f} for its calls"


def _by_family(metrics: dict[str, Any]) -> str:
    told = [f"{family} {_shown(share['reward_mean'])}" for family, share in metrics["families"].items()]
    return f" ({', '.join(told)})" if told else ""


def append(path: Path, metrics: dict[str, Any]) -> None:
    """Add a step's line to the file of metrics, unless a life that was killed right after has added it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and metrics["batch_id"].encode() in _end(path):
        return
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(metrics, separators=(",", ":")) + "\n")


def _end(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - END_BYTES))
        return file.read()


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if abs(value) < float("inf") else None


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
