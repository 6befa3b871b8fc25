"""What episodes came to, by the version they were played with: rewards with an interval, successes, and what they took.

An episode counts for each policy that it called, at the version it was pinned to last, and with all that it took: a
team's tokens are the price of the team's success. Families are those that the run's settings name. Pure: which episodes
are looked at is left to `outcome_reading.py`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from tracker.families import family_of
from tracker.intervals import Interval, interval_of
from tracker.types import Call, Record, Spent


class Played(Record, frozen=True):
    """An archived episode, as far as this is concerned with it."""

    episode_id: str
    task: str
    score: float | None
    spent: Spent | None
    """`None` for an archive of before anybody noted it."""
    versions: tuple[tuple[str, int], ...] = ()
    """(policy, version)."""


class Outcome(Record, frozen=True):
    """What some episodes came to."""

    num_episodes: int
    num_successes: int
    """Of those that are scored: with a reward of at least the threshold."""
    reward: Interval | None
    spent: Spent
    """Of all that noted it, together."""
    num_spent: int
    """How many noted it."""

    @property
    def tokens_per_success(self) -> float | None:
        """Tokens of all these episodes for each that succeeded; those that failed are a part of the price."""
        tokens = self.spent.prompt_tokens + self.spent.sampled_tokens
        return tokens / self.num_successes if self.num_successes and self.num_spent else None


class VersionOutcome(Record, frozen=True):
    """The episodes of one version, of all tasks or of one family."""

    policy: str
    version: int
    family: str | None
    """`None`: of all."""
    outcome: Outcome


class Progress(Record, frozen=True):
    """The newest episodes of a run, all together and by version."""

    run: str
    threshold: float
    is_whole: bool
    """Whether these are all archived episodes of the run."""
    total: Outcome
    versions: tuple[VersionOutcome, ...] = ()
    """By policy, family (all of them first) and version."""


def spent_on(calls: Iterable[Call]) -> Spent:
    """What an episode's calls took: of policies their tokens and the engines' time, of other models their price."""
    known = list(calls)
    own = [call for call in known if call.policy is not None]
    costs = [call.usage.cost for call in known if call.usage is not None and call.usage.cost is not None]
    return Spent(
        engine_ms=sum(max(0, call.ended_ms - call.started_ms) for call in own),
        prompt_tokens=sum(len(call.prompt_ids) for call in own),
        sampled_tokens=sum(len(choice.sampled_ids) for call in own for choice in call.choices),
        upstream_cost=math.fsum(costs) if costs else None,
    )


def outcome_of(episodes: Sequence[Played], threshold: float) -> Outcome:
    """These episodes together."""
    scores = [episode.score for episode in episodes if episode.score is not None]
    spent = [episode.spent for episode in episodes if episode.spent is not None]
    costs = [each.upstream_cost for each in spent if each.upstream_cost is not None]
    return Outcome(
        num_episodes=len(episodes),
        num_successes=sum(score >= threshold for score in scores),
        reward=interval_of(scores),
        spent=Spent(
            engine_ms=sum(each.engine_ms for each in spent),
            prompt_tokens=sum(each.prompt_tokens for each in spent),
            sampled_tokens=sum(each.sampled_tokens for each in spent),
            upstream_cost=math.fsum(costs) if costs else None,
        ),
        num_spent=len(spent),
    )


def version_outcomes(
    episodes: Iterable[Played], families: Sequence[str], threshold: float
) -> tuple[VersionOutcome, ...]:
    """By policy, family and version."""
    found: defaultdict[tuple[str, str, int], list[Played]] = defaultdict(list)
    for episode in episodes:
        family = family_of(episode.task, families)
        for policy, version in episode.versions:
            found[policy, "", version].append(episode)
            if family is not None:
                found[policy, family, version].append(episode)
    return tuple(
        VersionOutcome(policy=policy, version=version, family=family or None, outcome=outcome_of(played, threshold))
        for (policy, family, version), played in sorted(found.items(), key=lambda item: item[0])
    )
