"""What a rehearsal is told to have shown: numbers from calls, reasons, and what was not honoured."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
from rich.console import Console

from gateway.doctor.report import Left, Overridden, Refusal, Rehearsed, Report, Seen, overridden, report_of
from gateway.doctor.words import as_json, show
from tests.tracker.building import call
from tracker.types import Call, RunSettings, Sampling, Usage

RUN = RunSettings(run="default")
FIRST = call("a", 0, [1, 2], [3, 99])
SECOND = call("b", 1, [1, 2, 3, 99, 7], [8, 9, 99])


def changed(made: Call, **fields: Any) -> Call:
    return msgspec.structs.replace(made, **fields)


def reported(*calls: Call, run: RunSettings = RUN, **fields: Any) -> Report:
    episodes = (Rehearsed(episode_id="e", run=run, calls=calls),) if calls else ()
    return report_of(Seen(**{"exit_status": 0, "engine": "scripted", "episodes": episodes, **fields}))


def test_a_history_that_is_kept_is_trainable_whole() -> None:
    report = reported(FIRST, SECOND)
    assert report.is_trainable
    assert (report.num_sampled, report.num_trained, report.share) == (5, 5, 1.0)
    assert (report.num_rows, report.num_samples) == (2, 1)
    assert (report.num_raw_tokens, report.num_distinct_tokens, report.trie_ratio) == (12, 8, 1.5)


def test_what_is_left_out_is_told_by_reason_with_its_tokens() -> None:
    constrained = changed(SECOND, sampling=Sampling(constrained=True))
    retried = changed(call("c", 2, [5], [6]), retry=1)
    report = reported(FIRST, constrained, retried)
    assert report.left == {"not_policy_distribution": Left(num_calls=1, num_tokens=3)}
    assert (report.num_trained, report.num_sampled) == (3, 6)
    assert report.num_retries == 1


def test_calls_of_upstreams_are_counted_apart() -> None:
    judge = changed(call("j", 2, []), policy=None, usage=Usage(prompt_tokens=1, completion_tokens=1, cost=0.5))
    report = reported(FIRST, judge)
    assert (report.num_calls, report.num_text_calls, report.cost, report.left) == (1, 1, 0.5, {})


@pytest.mark.parametrize(
    ("calls", "fields", "words"),
    [
        ((), {}, "no call to a policy was recorded"),
        ((changed(FIRST, policy=None),), {}, "1 went to upstreams"),
        ((FIRST,), {"exit_status": 3}, "the command ended with status 3"),
        ((FIRST,), {"exit_status": -15, "timeout_s": 2.0}, "status -15: --timeout ended it after 2 s"),
        ((changed(FIRST, sampling=Sampling(constrained=True)),), {}, "would be trained: not_policy_distribution"),
    ],
)
def test_the_reasons_say_why_it_is_not_trainable(calls: tuple[Call, ...], fields: Any, words: str) -> None:
    report = reported(*calls, **fields)
    assert not report.is_trainable
    assert words in report.reasons[0]


def test_a_command_that_the_user_ended_is_judged_by_its_calls() -> None:
    assert reported(FIRST, exit_status=-15, was_stopped=True).is_trainable


def test_sampling_that_the_policys_stands_over_is_told() -> None:
    request = b'{"temperature": 0.2, "top_p": 1, "presence_penalty": 0.5, "logit_bias": {"1": 2}, "top_k": null}'
    asked = changed(FIRST, request=request)
    assert overridden(asked, RUN) == [
        Overridden(field="temperature", asked="0.2", sent="1"),
        Overridden(field="presence_penalty", asked="0.5", sent="0"),
        Overridden(field="logit_bias", asked="{'1': 2}", sent="left out"),
    ]
    assert overridden(asked, RunSettings(run="r", sampling="agent")) == []
    assert overridden(changed(asked, policy=None), RUN) == []


def test_a_rewritten_answer_that_opens_another_episode_is_told_as_a_split() -> None:
    said = b'{"role": "assistant", "content": "other"}'
    second = changed(call("b", 0, [1, 2, 4, 99], [8]), messages=(said,), episode_id="f", started_ms=5)
    episodes = [Rehearsed(episode_id="e", run=RUN, calls=(FIRST,)), Rehearsed(episode_id="f", run=RUN, calls=(second,))]
    report = reported(episodes=tuple(episodes))
    assert [step.call_id for step in report.split] == ["b"]
    assert as_json(report, [])["num_split"] == 1


def test_everything_is_shown_as_it_was_said() -> None:
    refusal = Refusal(path="POST /v1/x", status=400, message="[bold] is no markup", param="[a]")
    output = io.StringIO()
    report = reported(FIRST, refusals=(refusal, refusal))
    show(Console(file=output, width=200), report, [])
    assert "[bold] is no markup" in output.getvalue()
    assert as_json(report, [])["refused"][0]["times"] == 2
    assert "trainable: 100%" in output.getvalue()
