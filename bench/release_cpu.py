"""Trials of adapters that really were trained, on this machine: `make bench-release-cpu`.

A real gateway in canary mode, a real engine and a small real model. Adapters are trained once by Hone's trainer and
kept in `.hone/release-cpu` (some minutes the first time). Then they are played against each other until the gateway
has decided: `good` against the bare model; `turned`, trained with the sign of its reward turned, and `weak`, which is
`good` at such a part of its strength that it is about 0.3 worse, against `good`; copies of `good` under new numbers
against `good` itself, which must not be rolled back; and `good` against `weak`. Each adapter's true reward is measured
apart, at words that are held out.

Prints a table, writes the key `played` of bench/results/release.json and leaves its other keys. It ends with an error
where a trial did not come out as it should; one that takes longer than it is meant to is counted. Real trials are few:
how often they go wrong is what `make bench-release` simulates.
"""

import argparse
import asyncio
import sys
import time
from pathlib import Path
from statistics import fmean, stdev

from rich.console import Console

from bench.demo_seeds import machine
from bench.release import keep
from bench.releases.adapters import keep as keep_adapter
from bench.releases.adapters import trained, weakened
from bench.releases.stage import GROUP, MAX_EPISODES, Json, Stage, open_stage

FOLDER = Path(".hone/release-cpu").resolve()
PLAYED = "played"
"""Our key of the results."""
BASE = "base"
BEFORE = 64
"""Episodes of the run before the first trial."""
WITHIN = {"promoted": 150, "rolled_back": 60}
"""Episodes of both arms."""
WORSE = 0.3
NEAR = 0.06
FINEST = 0.05


async def play(seed: int, num_equal: int, console: Console) -> Json:
    """All trials, one after the other, and what was measured apart."""
    adapters = await trained(FOLDER, seed, console)
    async with open_stage(FOLDER / "playing", seed, console) as stage:
        rewards = {BASE: await stage.measured(BASE, 0)}
        await stage.play(BEFORE)
        trials: list[Json] = []

        async def on_trial(name: str, against: str, wanted: str) -> None:
            version = await stage.publish(adapters[name])
            if name not in rewards:
                rewards[name] = await stage.measured(name, version)
            trials.append({"canary": name, "stable": against, "wanted": wanted, **await stage.trial(version)})
            console.print(line(trials[-1], rewards), highlight=False, soft_wrap=True)

        await on_trial("good", BASE, "promoted")
        await on_trial("turned", "good", "rolled_back")
        adapters["weak"] = await weak_one(stage, adapters["good"], fmean(rewards["good"]), seed)
        await on_trial("weak", "good", "rolled_back")
        for _ in range(num_equal):
            await on_trial("good", "good", "not rolled_back")
        await stage.by_hand("rollback", 0)
        await stage.by_hand("promote", await stage.publish(adapters["weak"]))
        await on_trial("good", "weak", "promoted")
    return {"trials": trials, "held_out": {name: measured(values) for name, values in rewards.items()}}


async def weak_one(stage: Stage, good: Path, reward: float, seed: int) -> Path:
    """The adapter at such a part of its strength that it is `WORSE` worse, found by halving; kept for the next time."""
    kept = FOLDER / f"weak-{seed}"
    low, high = 0.0, 1.0
    while not kept.exists():
        factor = (low + high) / 2
        weak = weakened(good, FOLDER / "weakened", factor)
        stable = (await stage.release())["stable"]
        found = fmean(await stage.measured(f"at {factor:g}", await stage.publish(weak)))
        await stage.by_hand("rollback", stable)
        if abs(reward - WORSE - found) <= NEAR or high - low < FINEST:
            keep_adapter(weak, kept)
        low, high = (factor, high) if found < reward - WORSE else (low, factor)
    return kept


def measured(values: list[float]) -> Json:
    """A mean over words, and its standard error."""
    return {"reward": round(fmean(values), 4), "se": round(stdev(values) / len(values) ** 0.5, 4)}


def is_as_wanted(trial: Json) -> bool:
    """Whether a trial came out as it should. A bad version may be gone for its reward or by a guard; a good one is
    promoted for its reward, and not because nothing was shown."""
    match trial["wanted"]:
        case "promoted":
            return trial["outcome"] == "promoted" and trial["why"] == "its reward is better"
        case "rolled_back":
            return trial["outcome"] == "rolled_back"
        case _:
            return trial["outcome"] != "rolled_back"


def is_late(trial: Json) -> bool:
    """Whether it took more episodes than trials are meant to take at a difference of 0.3."""
    return trial["episodes"] > WITHIN.get(trial["wanted"], MAX_EPISODES)


def line(trial: Json, rewards: dict[str, list[float]]) -> str:
    """One trial, for people."""
    difference = fmean(rewards[trial["canary"]]) - fmean(rewards[trial["stable"]])
    return (
        f"{trial['canary']:<9} against {trial['stable']:<9} {difference:+.2f} held out: {trial['outcome']} after "
        f"{trial['episodes']} episodes, {trial['mean_canary']:.2f} against {trial['mean_stable']:.2f} ({trial['why']})"
    )


def table(found: Json) -> str:
    """Markdown, as docs/releases.md has it."""
    titles = ("canary", "stable", "true difference", "outcome", "episodes", "the canary's", "reward seen")
    lines = [f"| {' | '.join(titles)} |", "|---|---|--:|---|--:|--:|--:|"]
    for trial in found["trials"]:
        ours, theirs = (found["held_out"][trial[arm]]["reward"] for arm in ("canary", "stable"))
        cells = (
            *(trial["canary"], trial["stable"], "0" if ours == theirs else f"{ours - theirs:+.2f}"),
            *(f"{trial['outcome'].replace('_', ' ')}: {trial['why']}", str(trial["episodes"])),
            *(str(trial["canary_episodes"]), f"{trial['mean_canary']:.2f}, {trial['mean_stable']:.2f}"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Train where needed, play, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--equal", type=int, default=5, help="how many trials of a copy against itself")
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    found = asyncio.run(play(options.seed, options.equal, Console()))
    found |= {
        "group_size": GROUP,
        "max_episodes": MAX_EPISODES,
        "seed": options.seed,
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "command": f"python -m bench.release_cpu {' '.join(sys.argv[1:])}".strip(),
        "seconds": round(time.monotonic() - started, 1),
    }
    keep({PLAYED: found})
    print(table(found))
    late = sum(map(is_late, found["trials"]))
    print(f"{late} of {len(found['trials'])} took more than {WITHIN['rolled_back']} or {WITHIN['promoted']} episodes")
    wrong = [trial for trial in found["trials"] if not is_as_wanted(trial)]
    if wrong:
        sys.exit(f"{len(wrong)} of {len(found['trials'])} trials did not come out as they should")


if __name__ == "__main__":
    main()
