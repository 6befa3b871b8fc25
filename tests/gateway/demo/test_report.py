import io
import random

import msgspec
from rich.console import Console

from gateway.demo.report import GroupPoint, Summary, TrainingFigures, curve, summarise, tell, to_json

FIGURES = TrainingFigures(
    episodes=320,
    calls=500,
    excluded=2,
    rows=498,
    branches=320,
    steps=10,
    trained_episodes=320,
    raw_tokens=38_000,
    distinct_tokens=25_000,
    merge_ratio=1.5,
    trained_tokens=3_000,
    versions=10,
    lag_mean=0.4,
    logprob_gap_mean=0.02,
)


def summary() -> Summary:
    draw = random.Random(0)
    before = {f"item-{number}": [float(draw.random() < 0.1) for _ in range(4)] for number in range(36)}
    after = {f"item-{number}": [float(draw.random() < 0.9) for _ in range(4)] for number in range(36)}
    points = [GroupPoint(version=n // 4, reward=n / 40, solved=n / 50) for n in range(40)]
    return summarise(
        before, after, FIGURES, points, {"seconds": 300.0, "version": 10, "model": "m", "seed": 0, "temperature": 1.0}
    )


def test_the_file_has_the_figures_that_were_promised_and_reads_back_equal():
    made = summary()
    fields = msgspec.json.decode(to_json(made))
    assert set(fields["before"]) >= {"mean", "low", "high", "n"}
    assert set(fields["gain"]) >= {"mean", "low", "high"}
    for name in ("seconds", "versions", "calls", "rows", "raw_tokens", "distinct_tokens", "logprob_gap_mean"):
        assert name in fields
    assert fields["before"]["n"] == 144
    assert fields["gain"]["low"] > 0.5
    assert msgspec.json.decode(to_json(made), type=Summary) == made


def test_half_a_success_is_no_success():
    made = summarise(
        {"a": [0.5]},
        {"a": [1.0]},
        FIGURES,
        [],
        {"seconds": 1.0, "version": 1, "model": "m", "seed": 0, "temperature": 1},
    )
    assert (made.before.mean, made.before.reward, made.after.mean) == (0.0, 0.5, 1.0)


def test_what_is_told_fits_a_terminal_and_holds_the_figures():
    console = Console(file=io.StringIO(), width=100)
    tell(summary(), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "before (version 0)" in text
    assert "after (version 10)" in text
    assert "gain in points (paired)" in text
    assert "0.0200" in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_a_curve_rises_with_its_values():
    lines = curve([n / 39 for n in range(40)], width=40, height=5).splitlines()
    assert lines[0].startswith(" 1.0")
    assert lines[-1].startswith(" 0.0")
    assert lines[0].index("·") > lines[-1].index("█")
