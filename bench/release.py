"""What it takes to tell a version on trial from the stable one: `python -m bench.release` prints a table and writes
bench/results/release.json.

Simulated: 200 trials each of a version that is 0.3 worse, 0.3 better, and equal, looked at after every episode with the
default rules, in worlds whose rewards fall differently. `bad_rolled_back_episodes` and `good_promoted_episodes` are
medians, in scored episodes of both arms together, over the trials of all worlds whose episodes are independent; `p90`
is there too, and how many of the canary's alone. A false alarm is an equal version that is rolled back for its reward,
or promoted as better; the rate is that of all these worlds, and the worst one is named. What becomes of an equal
version at `max_episodes` is no claim and no alarm. Groups of attempts at one task stand apart: where tasks are alike,
and where they differ, with both units.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from bench.releases.worlds import GROUP, Bernoulli, Graded, Tasks, World, played
from tracker.judging import first_outcome
from tracker.trials import Outcome, Rules, Seen

RESULTS: Final = Path(__file__).parent / "results" / "release.json"
NUM_TRIALS: Final = 200
SHARE: Final = 0.5
WORSE, EQUAL, BETTER = -0.3, 0.0, 0.3
WORLDS: Final[tuple[World, ...]] = (
    *(Bernoulli(mean) for mean in (0.3, 0.4, 0.5, 0.6, 0.7)),
    *(Graded(mean) for mean in (0.3, 0.5, 0.7)),
)
"""The stable version's mean; one that is 0.3 worse than 0.3, or better than 0.7, is always 0, or always 1."""
NEW: Final[tuple[World, ...]] = (Bernoulli(0.5, 0), Graded(0.5, 0))
"""Nothing is known from before the trial."""
ALIKE: Final[tuple[World, ...]] = (Bernoulli(0.5), Bernoulli(0.7), Graded(0.5))
"""Played in groups as well, in which attempts have nothing in common."""
DIFFERENT: Final[tuple[World, ...]] = (
    Tasks(0.8, 0.3, 24),
    Tasks(0.8, 0.3, 8),
    Tasks(0.8, 0.3),
    Tasks(0.95, 0.05),
    Tasks(0.8, 0.3, num_before=0),
    Tasks(0.95, 0.05, num_before=0),
)


@dataclass(frozen=True, slots=True)
class Ended:
    """One trial."""

    outcome: Outcome
    num_episodes: int
    num_canary: int


def trials(world: World, difference: float, seed: int, unit: str = "episode", size: int = 1) -> list[Ended]:
    """So many trials in one world."""
    rng = random.Random(f"{world} {difference} {seed} {unit}")
    rules = Rules(undecided="hold", unit=unit)
    found: list[Ended] = []
    for _ in range(NUM_TRIALS):
        stream = played(world, difference, SHARE, rng, size)
        episodes: list[Seen] = [next(stream) for _ in range(rules.max_episodes)]
        outcome, number = first_outcome(episodes, rules)
        found.append(Ended(outcome, number, sum(one.is_canary for one in episodes[:number])))
    return found


def told(ended: list[Ended], wanted: Outcome) -> dict[str, Any]:
    """How many came to this outcome, and how soon."""
    hits = sorted((one for one in ended if one.outcome is wanted), key=lambda one: one.num_episodes)
    numbers, canary = [one.num_episodes for one in hits], sorted(one.num_canary for one in hits)
    return {
        "share": round(len(hits) / len(ended), 4),
        "median": median(numbers) if hits else None,
        "p90": numbers[int(0.9 * len(hits))] if hits else None,
        "canary_median": median(canary) if hits else None,
        "canary_p90": canary[int(0.9 * len(hits))] if hits else None,
    }


def measured(world: World, seed: int, unit: str = "episode", size: int = 1) -> dict[str, Any]:
    """One world: a worse, a better and an equal version."""
    worse, equal, better = (trials(world, each, seed, unit, size) for each in (WORSE, EQUAL, BETTER))
    rolled, promoted = (sum(one.outcome is what for one in equal) for what in (Outcome.ROLL_BACK, Outcome.PROMOTE))
    return {
        "world": str(world),
        "unit": unit,
        "bad": told(worse, Outcome.ROLL_BACK),
        "good": told(better, Outcome.PROMOTE),
        "false_rollback_rate": rolled / len(equal),
        "false_promotion_rate": promoted / len(equal),
        "false_alarm_rate": (rolled + promoted) / len(equal),
    }


def headline(seed: int) -> dict[str, Any]:
    """The three numbers, and what they come from."""
    worlds = [measured(world, seed) for world in WORLDS]
    bad = [one.num_episodes for world in WORLDS for one in trials(world, WORSE, seed)]
    good = [one.num_episodes for world in WORLDS for one in trials(world, BETTER, seed)]
    return {
        "bad_rolled_back_episodes": median(bad),
        "good_promoted_episodes": median(good),
        "false_alarm_rate": round(fmean(world["false_alarm_rate"] for world in worlds), 4),
        "worst_world": {
            "false_alarm_rate": max(world["false_alarm_rate"] for world in worlds),
            "bad_rolled_back_episodes": max(world["bad"]["median"] for world in worlds),
            "good_promoted_episodes": max(world["good"]["median"] for world in worlds),
        },
        "unit": "scored episodes of both arms, median",
        "num_trials": NUM_TRIALS,
        "share": SHARE,
        "worlds": worlds,
        "new_runs": [measured(world, seed) for world in NEW],
        "in_groups": [measured(world, seed, size=GROUP) for world in ALIKE],
        "different_tasks": [measured(world, seed, unit, GROUP) for unit in ("episode", "group") for world in DIFFERENT],
    }


def table(results: dict[str, Any]) -> str:
    """For people."""
    lines = [f"{'world':<42} {'unit':<8} {'worse: gone after':>18} {'better: all after':>18} {'false alarms':>13}"]
    for one in (*results["worlds"], *results["new_runs"], *results["in_groups"], *results["different_tasks"]):
        bad, good = (f"{one[what]['median']} (p90 {one[what]['p90']})" for what in ("bad", "good"))
        lines.append(f"{one['world']:<42} {one['unit']:<8} {bad:>18} {good:>18} {one['false_alarm_rate']:>12.1%}")
    lines.append(
        f"all independent worlds: {results['bad_rolled_back_episodes']} episodes to roll back, "
        f"{results['good_promoted_episodes']} to promote, false alarms {results['false_alarm_rate']:.1%}"
    )
    return "\n".join(lines)


def keep(results: dict[str, Any], path: Path = RESULTS) -> None:
    """Write these keys of the file; the other bench's stay as they are."""
    path.parent.mkdir(exist_ok=True)
    before: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | results, indent=1) + "\n")


def main() -> None:
    """Simulate, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    started = time.monotonic()
    results = headline(options.seed)
    results |= {
        "seed": options.seed,
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "command": f"python -m bench.release {' '.join(sys.argv[1:])}".strip(),
        "seconds": round(time.monotonic() - started, 1),
    }
    keep(results)
    print(table(results))


if __name__ == "__main__":
    main()
