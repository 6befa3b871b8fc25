"""What pages make of steps and versions: numbers that are missing, episodes of strangers, what an act would do."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gateway.dashboard.curves import figures, read_step
from gateway.dashboard.steps import ELSEWHERE, Span, chosen_policy, finding_view, step_page
from gateway.dashboard.versions import Known, base_view, gaps_by_version, version_views, what_rollback_does
from tracker.errors import NotFound
from tracker.evidence import Fault
from tracker.overview import StepTold, VersionReward
from tracker.shares import VersionGap
from tracker.trials import NOT_TRIED
from tracker.types import Batch, Policy, Version, VersionState
from tracker.verification import Finding

NOTHING = Known(rewards={}, gaps={}, pins={})


def told(step: int, epoch: int = 0, state: str = "trained", **metrics: Any) -> StepTold:
    return StepTold(
        batch_id=f"b{epoch}-{step}",
        policy="p",
        epoch=epoch,
        step=step,
        state=state,
        num_groups=1,
        created_ms=1,
        metrics=json.dumps(metrics).encode(),
    )


def gap(num_tokens: int, mean: float = 0.1, ratio: float = 1.0) -> dict[str, float]:
    return {"mean": mean, "maximum": 0.5, "ratio": ratio, "num_tokens": num_tokens}


@pytest.mark.parametrize("metrics", [b"", b"[1]", b"null", b'{"loss": "x", "wait_s": true}', b'{"loss": NaN}'])
def test_metrics_that_are_none_are_gaps(metrics: bytes) -> None:
    step = read_step(StepTold(**{**fields_of(told(1)), "metrics": metrics}))
    assert step.number("loss") is None
    assert (step.idle_share, step.saved_share, step.ratio, step.families, step.problem) == (None, None, None, [], "")


def fields_of(step: StepTold) -> dict[str, Any]:
    return {name: getattr(step, name) for name in StepTold.__struct_fields__}


def test_shares_of_a_step_are_worked_out_of_what_its_trainer_told() -> None:
    step = read_step(told(1, wait_s=2, train_s=5, publish_s=1, raw_tokens=100, run_tokens=40))
    assert (step.idle_share, step.saved_share) == (0.25, 0.6)
    weighed = read_step(told(1, gap_by_version={"1": gap(10, ratio=1.0), "2": gap(30, ratio=1.2)}))
    assert weighed.ratio == pytest.approx(1.15)


def test_dropped_steps_are_not_drawn_and_a_rollback_is_marked() -> None:
    newest_first = [
        told(2, epoch=1, loss=0.1),
        told(3, state="dropped", loss=9.0),
        told(2, loss=0.2),
        told(1, loss=0.3),
    ]
    drawn = {one.chart.title: one.chart for one in figures([read_step(one) for one in newest_first])}
    assert drawn["Loss"].lines[0].values == (0.3, 0.2, 0.1)
    assert [place for place, _ in drawn["Loss"].marks] == [2]
    assert "Reward by family" not in drawn


def test_a_noisy_curve_of_many_steps_has_its_average_before_it() -> None:
    steps = [read_step(told(step, loss=float(step))) for step in range(30, 0, -1)]
    (loss,) = [one.chart for one in figures(steps) if one.chart.title == "Loss"]
    assert [line.is_faint for line in loss.lines] == [True, False]
    assert loss.lines[1].values[-1] == pytest.approx(26.5)


def test_gaps_of_a_version_are_added_up_over_steps() -> None:
    steps = [
        read_step(told(2, gap_by_version={"1": gap(10, 0.1), "x": gap(5)})),
        read_step(told(1, gap_by_version={"1": gap(30, 0.5)})),
    ]
    assert gaps_by_version(steps) == {1: VersionGap(mean=pytest.approx(0.4), maximum=0.5, ratio=1.0, num_tokens=40)}


def test_what_is_not_known_of_a_version_is_nothing_and_not_zero() -> None:
    (view,) = version_views(Policy(policy="p"), [Version(policy="p", version=1)], NOTHING)
    assert (view.reward, view.gap, view.share, view.probe, view.batch_id) == (None, None, None, "", "")
    assert not view.can_go_back
    (unseen,) = version_views(Policy(policy="p"), [Version(policy="p", version=1)], replace(NOTHING, pins=None))
    assert (view.num_open, unseen.num_open) == (0, None)


def test_versions_tell_their_share_of_open_episodes_and_how_their_probe_went() -> None:
    versions = [
        Version(policy="p", version=1, state=VersionState.RETIRED, detail="probe: ok (0.1 from this version)"),
        Version(policy="p", version=2, state=VersionState.FAILED, detail="the engine does not serve it"),
        Version(policy="p", version=3, state=VersionState.ACTIVE, metrics=b'{"batch_id": "b-3"}'),
    ]
    known = Known(rewards={3: VersionReward(num_episodes=7, reward=None)}, gaps={}, pins={3: 3, 1: 1})
    views = version_views(Policy(policy="p", active=3), versions, known)
    assert [view.probe for view in views] == ["ok", "failed", ""]
    assert [view.share for view in views] == [0.25, 0.0, 0.75]
    assert [view.can_go_back for view in views] == [True, False, False]
    assert (views[2].batch_id, views[2].num_episodes, views[2].is_active) == ("b-3", 7, True)
    assert base_view(Policy(policy="p", active=3), known).can_go_back


def test_a_version_that_was_passed_over_failed_at_nothing() -> None:
    passed_over = Version(policy="p", version=1, state=VersionState.FAILED, detail=f"{NOT_TRIED}: version 2 was newer")
    (view,) = version_views(Policy(policy="p", active=2), [passed_over], NOTHING)
    assert (view.state, view.probe, view.can_go_back) == ("not_tried", "", False)


def test_going_back_says_what_is_withdrawn_and_who_moves() -> None:
    versions = [Version(policy="p", version=number, state=VersionState.RETIRED) for number in (1, 2, 3)]
    versions.append(Version(policy="p", version=4, state=VersionState.WITHDRAWN))
    lines = what_rollback_does(Policy(policy="p", active=3, epoch=4), versions, 1, {3: 2, 1: 5})
    assert "version 1 at once, in place of version 3" in lines[0]
    assert lines[1].startswith("Versions 2 and 3 are withdrawn")
    assert lines[2].startswith("2 open episodes move to version 1")
    assert "epoch rises to 5" in lines[-1]
    unknown = what_rollback_does(Policy(policy="p", active=3), versions, 1, None)
    assert "not known: the episode store does not answer" in unknown[2]
    to_base = what_rollback_does(Policy(policy="p", active=0), [], 0, {})
    assert not any("withdrawn" in line for line in to_base)


def test_spans_and_faults_of_other_tenants_name_nobody() -> None:
    span = Span("ep-1", "c-1", 0, 1, 3, 9, 0.5, "r")
    assert span.seen_by({"ep-1"}).is_own
    hidden = span.seen_by({"ep-2"})
    assert (hidden.episode_id, hidden.call_id) == (ELSEWHERE, "")
    faults = (Fault(what="broken", episode_id="ep-1", call_id="c-1"), Fault(what="broken", episode_id="ep-2"))
    batch = Batch(batch_id="b", policy="p", step=1, epoch=0, fence=1, state="trained")
    view = finding_view(Finding(batch=batch, faults=faults), "FAILED  b: 2", {"ep-2"}, 1)
    assert not view.is_ok
    assert view.faults == ("an episode of another tenant: broken", "episode ep-2: broken")


def test_a_step_without_a_manifest_says_why() -> None:
    taken = Batch(batch_id="b", policy="p", step=1, epoch=0, fence=1)
    edited = Batch(batch_id="b", policy="p", step=1, epoch=0, fence=1, manifest=b"{}")
    assert "right before the step" in step_page(taken, None).why_no_manifest
    assert "cannot be read" in step_page(edited, None).why_no_manifest


def test_a_policy_is_chosen_or_refused_by_name() -> None:
    assert chosen_policy(["a", "b"], None) == "a"
    assert chosen_policy(["a", "b"], "b") == "b"
    assert chosen_policy([], None) == ""
    with pytest.raises(NotFound, match="there is a"):
        chosen_policy(["a"], "x")
