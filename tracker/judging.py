"""What a trial amounts to: promoted, rolled back, or not decided yet. Pure.

After every scored episode it is asked, by evidence that may be looked at that often (`sequential.py`): is the canary's
reward shown to be worse than stable's (less the margin)? Then it is rolled back. Better? Then it is promoted. Guards
look at what a mean reward hides, and only ever roll back. A version of which nothing was shown in `max_episodes` is
promoted, rolled back or held, as the rules say: that is no claim, and is told as what it is.

Only episodes that got what their arm says count, once they are archived. Attempts at one task are alike as far as what
was expected there does not explain it: how much is measured, and each then says the less (`likeness.py`). With
`unit = "group"` means of whole groups are compared instead, which rests on nothing measured. Who acts on a verdict is
left to the gateway.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from tracker.likeness import Attempts
from tracker.sequential import BOLD, EFFECTS, Comparison, Drawn, Exceeding, bounds
from tracker.trials import UNKNOWN, Facts, Guard, Outcome, Rules, Seen, Verdict

EARLY: Final = 10.0
"""How many times the evidence a claim needs before `min_episodes`."""
MIN_TOKENS: Final = 500
"""Of the canary, before its entropy says anything."""
MIN_LATENCIES: Final = 5
"""Episodes of the stable version, before calls are compared with its median."""
NOTHING: Final = Facts()


class _Walk:
    """Looks at a trial episode by episode, as whoever asks after each of them would."""

    def __init__(self, rules: Rules, facts: Facts) -> None:
        self._rules = rules
        self._effects = EFFECTS if rules.unit == "episode" else BOLD
        self._compared = Comparison(-rules.margin, self._effects)
        self._means = _Means(rules)
        self._attempts = Attempts()
        self._sum = 0.0
        self._num_scored = 0
        self._rates = [
            (name, Comparison(limit), limit, field)
            for name, limit, field in (
                ("parse_errors", rules.max_parse_errors, "num_unparsed"),
                ("truncation", rules.max_truncation, "num_truncated"),
            )
            if limit is not None
        ]
        self._facts = facts
        self._floor = None if rules.min_reward is None else Exceeding(1 - rules.scaled(rules.min_reward))
        self._slow = Exceeding(0.5)
        self._latencies: list[float] = []
        self._slow_calls: list[float] = []
        self._seen: tuple[list[Seen], list[Seen]] = ([], [])
        self._nats = 0.0
        self._num_tokens = 0
        self.drawn: list[Drawn] = []

    def take(self, seen: Seen) -> tuple[Outcome, str]:
        """What follows from all that was taken so far."""
        self._seen[seen.is_canary].append(seen)
        for _, compared, _, field in self._rates:
            if seen.measures.num_choices:
                compared.feed(Drawn(seen.is_canary, seen.share, seen.measures.share(field)))
        self._time(seen)
        self._add(seen)
        if self._may_have_tripped():
            tripped = next((guard for guard in self.guards() if guard.tripped), None)
            if tripped is not None:
                return Outcome.ROLL_BACK, _told_guard(tripped)
        if seen.reward is None:
            return self._compare_group(seen)
        self._num_scored += 1
        value = self._rules.scaled(seen.reward)
        if self._floor is not None and seen.is_canary:
            self._floor.feed(1 - value)
        if self._rules.unit == "episode":
            return self.compare(self._drawn(seen, value))
        return self._compare_group(seen)

    def _drawn(self, seen: Seen, value: float) -> Drawn:
        """The value of one episode, weighed by how alike attempts at its task are by all that came before it."""
        guess = self.guess(seen)
        weight = self._attempts.weight(seen.likeness, seen.num_attempts)
        if seen.group_id is not None:
            expected = self._so_far() if guess is None else guess
            self._attempts.take(seen.group_id, seen.is_canary, value - expected)
        return Drawn(seen.is_canary, seen.share, value, guess, weight)

    def _compare_group(self, seen: Seen) -> tuple[Outcome, str]:
        """What follows if this episode makes its group whole, and groups are compared."""
        drawn = self._means.take(seen, self.guess(seen)) if self._rules.unit == "group" else None
        return (Outcome.GOES_ON, "") if drawn is None else self.compare(drawn)

    def _add(self, seen: Seen) -> None:
        if seen.is_canary:
            self._nats += seen.measures.nats
            self._num_tokens += seen.measures.num_tokens

    def _may_have_tripped(self) -> bool:
        """The guards in short: told in full they take a look at every episode."""
        needed = 1 / self._rules.alpha_guard
        evidences = [compared.above for _, compared, _, _ in self._rates] + [self._slow.evidence]
        evidences += [] if self._floor is None else [self._floor.evidence]
        is_flat = self._num_tokens >= MIN_TOKENS and self._nats < (self._rules.min_entropy or 0.0) * self._num_tokens
        known = (self._facts.trained_kl or 0.0, self._facts.shadow_kl or 0.0)
        is_far = self._rules.max_kl is not None and max(known) > self._rules.max_kl
        return max(evidences) >= needed or is_flat or is_far

    def compare(self, drawn: Drawn) -> tuple[Outcome, str]:
        """What follows from one more value of reward."""
        self.drawn.append(drawn)
        self._sum += drawn.value
        self._compared.feed(drawn)
        worse, better = self.needed()
        if self._compared.below >= worse:
            return Outcome.ROLL_BACK, "its reward is worse"
        if self._compared.above >= better:
            return Outcome.PROMOTE, "its reward is better" if self._rules.margin == 0 else "its reward is as good"
        if self._num_scored >= self._rules.max_episodes and self._rules.undecided != "hold":
            outcome = Outcome.PROMOTE if self._rules.undecided == "promote" else Outcome.ROLL_BACK
            return outcome, f"nothing was shown in {self._num_scored} episodes"
        return Outcome.GOES_ON, ""

    def guess(self, seen: Seen) -> float | None:
        """What was to be expected at an episode's task, where anything is known of that: attempts at one task are
        alike, and what is expected of both arms cannot be taken for a difference between them."""
        if seen.task_mean is None or not seen.num_before:
            return None
        known = seen.num_before * self._rules.scaled(seen.task_mean)
        return (known + UNKNOWN * self._so_far()) / (seen.num_before + UNKNOWN)

    def _so_far(self) -> float:
        """The mean of both arms."""
        return (self._sum + 1) / (len(self.drawn) + 2)

    def bounds(self) -> tuple[float, float]:
        """Of the difference."""
        return bounds(self.drawn, self._rules.alpha_promote, self._rules.alpha_roll_back, self._effects)

    def needed(self) -> tuple[float, float]:
        """The evidence that the next claim needs: worse, better."""
        early = EARLY if self._num_scored < self._rules.min_episodes else 1.0
        return early / self._rules.alpha_roll_back, early / self._rules.alpha_promote

    def evidence(self) -> tuple[float, float]:
        return self._compared.below, self._compared.above

    def guards(self) -> tuple[Guard, ...]:
        """How each guard stands."""
        found = [
            self._by_evidence(name, limit, compared.above, *(_share(seen, field) for seen in self._seen))
            for name, compared, limit, field in self._rates
        ]
        return (*found, *self._guards_of_reward_and_time(), *self._guards_of_distribution())

    def _guards_of_reward_and_time(self) -> Iterable[Guard]:
        rules = self._rules
        if self._floor is not None and rules.min_reward is not None:
            means = [_mean(one.reward for one in seen if one.reward is not None) for seen in self._seen]
            found = self._by_evidence("reward", rules.min_reward, self._floor.evidence, *means)
            yield msgspec.structs.replace(found, side="under")
        if rules.max_latency_ratio is not None:
            stable = statistics.median(self._latencies) if self._latencies else None
            canary = statistics.median(self._slow_calls) if self._slow_calls else None
            yield self._by_evidence("latency", rules.max_latency_ratio, self._slow.evidence, stable, canary)

    def _guards_of_distribution(self) -> Iterable[Guard]:
        rules, facts = self._rules, self._facts
        for name, value in (("trained_kl", facts.trained_kl), ("shadow_kl", facts.shadow_kl)):
            if rules.max_kl is not None:
                is_over = value is not None and value > rules.max_kl
                yield Guard(name=name, limit=rules.max_kl, canary=value, tripped=is_over)
        if rules.min_entropy is not None:
            stable, canary = (_entropy(seen) for seen in self._seen)
            is_under = canary is not None and canary < rules.min_entropy
            limit = rules.min_entropy
            yield Guard(name="entropy", limit=limit, stable=stable, canary=canary, tripped=is_under, side="under")

    def _by_evidence(
        self, name: str, limit: float, evidence: float, stable: float | None, canary: float | None
    ) -> Guard:
        needed = 1 / self._rules.alpha_guard
        return Guard(
            name=name,
            limit=limit,
            stable=stable,
            canary=canary,
            evidence=evidence,
            needed=needed,
            tripped=evidence >= needed,
        )

    def _time(self, seen: Seen) -> None:
        """A call of the canary is slow where it takes more than the ratio of stable's median so far: of one that keeps
        the ratio at most half are."""
        ratio, measures = self._rules.max_latency_ratio, seen.measures
        if ratio is None or not measures.num_calls:
            return
        took = measures.call_ms / measures.num_calls
        if not seen.is_canary:
            self._latencies.append(took)
            return
        self._slow_calls.append(took)
        if len(self._latencies) >= MIN_LATENCIES:
            self._slow.feed(float(took > ratio * max(1.0, statistics.median(self._latencies))))


def judge(seen: Sequence[Seen], rules: Rules, facts: Facts = NOTHING, *, bounded: bool = True) -> Verdict:
    """What a trial amounts to, from its episodes in the order in which they were archived; `bounded`: with the bounds
    of the difference, which are for people and take ten times as long as all else.

    The first outcome that came up on the way stands, so that it does not matter how often somebody looks.
    """
    walk = _Walk(rules, facts)
    outcome, why = Outcome.GOES_ON, ""
    for one in seen:
        outcome, why = walk.take(one)
        if outcome is not Outcome.GOES_ON:
            break
    found = _verdict(walk, seen, rules, outcome, why)
    if not bounded:
        return found
    lower, upper = walk.bounds()
    width = rules.reward_high - rules.reward_low
    return msgspec.structs.replace(found, lower=lower * width, upper=upper * width)


class _Means:
    """Whole groups as one value each, whose arm was drawn once: a group counts when all its members were seen."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._open: dict[str, list[Seen]] = {}

    def take(self, seen: Seen, guess: float | None) -> Drawn | None:
        """The value of the group that this one makes whole."""
        if seen.group_id is None or not seen.group_size:
            return None
        members = self._open.setdefault(seen.group_id, [])
        members.append(seen)
        if len(members) < seen.group_size:
            return None
        values = [self._rules.scaled(one.reward) for one in members if one.reward is not None]
        return Drawn(seen.is_canary, seen.share, statistics.fmean(values), guess) if values else None


def _verdict(walk: _Walk, seen: Sequence[Seen], rules: Rules, outcome: Outcome, why: str) -> Verdict:
    width = rules.reward_high - rules.reward_low
    values = [
        [rules.reward_low + width * one.value for one in walk.drawn if one.is_canary is arm] for arm in (False, True)
    ]
    worse, better = walk.evidence()
    needed_worse, needed_better = walk.needed()
    rewards = [one.reward for one in seen if one.reward is not None]
    return Verdict(
        outcome=outcome,
        why=why,
        num_stable=len(values[0]),
        num_canary=len(values[1]),
        num_clipped=sum(not rules.reward_low <= reward <= rules.reward_high for reward in rewards),
        mean_stable=_mean(values[0]),
        mean_canary=_mean(values[1]),
        weight=walk.drawn[-1].weight if walk.drawn else 1.0,
        evidence_worse=worse,
        needed_worse=needed_worse,
        evidence_better=better,
        needed_better=needed_better,
        guards=walk.guards(),
    )


def first_outcome(seen: Iterable[Seen], rules: Rules) -> tuple[Outcome, int]:
    """What comes up first, and after how many episodes: `judge` without the numbers, for simulations."""
    walk, number = _Walk(rules, NOTHING), 0
    for number, one in enumerate(seen, 1):
        outcome, _ = walk.take(one)
        if outcome is not Outcome.GOES_ON:
            return outcome, number
    return Outcome.GOES_ON, number


def packed_verdict(verdict: Verdict) -> bytes:
    return msgspec.json.encode(verdict)


def _told_guard(guard: Guard) -> str:
    def number(value: float | None) -> str:
        return "nothing" if value is None else f"{value:.3g}"

    found = f"{number(guard.canary)} against {number(guard.stable)}"
    return f"{guard.name} is {found}, {guard.side} the limit of {guard.limit:g}"


def _share(seen: Iterable[Seen], field: str) -> float | None:
    return _mean(one.measures.share(field) for one in seen if one.measures.num_choices)


def _entropy(seen: Sequence[Seen]) -> float | None:
    num_tokens = sum(one.measures.num_tokens for one in seen)
    return sum(one.measures.nats for one in seen) / num_tokens if num_tokens >= MIN_TOKENS else None


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return statistics.fmean(listed) if listed else None
