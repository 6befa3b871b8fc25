"""Whether what is stored is what the agents saw. Pure.

The rule of the suite: a call whose answer an agent read to its end is in exactly one sample, or excluded with a reason
that says what was amiss; a reward that was accepted is there exactly once; a group is in one batch. `lost` as a reason
is no excuse for an answer that was given: it counts as lost here. What was read from where is left to `reading.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

FORGOTTEN = frozenset({"lost", "unrecorded"})
"""Reasons that say that the answer itself is not there any more."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A call that was answered completely, as its agent saw it."""

    call_id: str
    episode_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """A reward that was answered with 201 or 200."""

    reward_id: str
    nonce: str
    """What the reward itself says it is; attempts without an idempotency key have one each."""


@dataclass(slots=True)
class Seen:
    """What agents and drivers saw. It is filled while the load runs."""

    answered: list[Answered] = field(default_factory=list)
    accepted: list[Accepted] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Nonces of rewards that were refused, or whose answer never came."""
    keyed: set[str] = field(default_factory=set)
    """Nonces under which one reward was sent, however often: those with an idempotency key."""
    episodes: dict[int, str] = field(default_factory=dict)
    """Number -> its id."""
    num_done: int = 0
    num_errors: int = 0
    """Calls that failed for their agent in spite of its SDK's retries."""
    num_retries: int = 0
    given_up: list[str] = field(default_factory=list)
    """What an agent or a driver could not do at all, in words."""


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """What the gateway tells of an episode."""

    episode_id: str
    state: str
    texts: Mapping[str, str]
    """call -> the text of its answer."""
    sampled: Mapping[str, int]
    """call -> the trained spans it has, over all samples."""
    excluded: Mapping[str, str]
    """call -> reason."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A batch as SQL holds it, or as the taker who trained on it remembers it."""

    batch_id: str
    group_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """Everything that was read back."""

    episodes: Sequence[StoredEpisode]
    rewards: Sequence[Accepted]
    batches: Sequence[Taken]
    """Those that were not dropped."""
    trained: Sequence[Taken]
    """What the takers trained on, in their own words."""
    num_groups: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """One row of the table, without its name and its times."""

    answered: int
    in_samples: int
    excluded: int
    lost: int
    rewards_accepted: int
    rewards_found: int
    groups: int
    groups_twice: int
    reasons: Mapping[str, int]
    """Of all calls that are excluded, answered or not."""
    problems: tuple[str, ...]
    """What is amiss, in words; empty if nothing is."""

    @property
    def holds(self) -> bool:
        return not (self.problems or self.lost or self.groups_twice) and self.rewards_found == self.rewards_accepted


def judge(seen: Seen, stored: Stored) -> Verdict:
    """Compare the two.

    >>> kept = StoredEpisode("ep-1", "archived", {"c": "hi"}, {"c": 1}, {})
    >>> judge(Seen(answered=[Answered("c", "ep-1", "hi")]), Stored([kept], [], [], [])).in_samples
    1
    """
    problems = [*seen.given_up]
    fates = _fates(seen.answered, stored.episodes, problems)
    _check_calls(stored.episodes, problems)
    _check_states(seen.episodes.values(), stored.episodes, problems)
    found = _rewards_found(seen, stored.rewards, problems)
    twice = _groups_twice((*stored.batches, *stored.trained))
    problems += [f"group {group_id} is in {len(batches)} batches" for group_id, batches in twice.items()]
    return Verdict(
        answered=len(seen.answered),
        in_samples=fates["in_samples"],
        excluded=fates["excluded"],
        lost=fates["lost"],
        rewards_accepted=len({reward.reward_id for reward in seen.accepted}),
        rewards_found=found,
        groups=stored.num_groups,
        groups_twice=len(twice),
        reasons=Counter(reason for episode in stored.episodes for reason in episode.excluded.values()),
        problems=tuple(problems),
    )


def _fates(answered: Iterable[Answered], episodes: Iterable[StoredEpisode], problems: list[str]) -> Counter[str]:
    """Where each answered call went."""
    known = {episode.episode_id: episode for episode in episodes}
    fates = Counter[str]()
    for call in answered:
        fate, trouble = _fate(call, known.get(call.episode_id))
        fates[fate] += 1
        if trouble:
            problems.append(f"call {call.call_id}: {trouble}")
    return fates


def _fate(call: Answered, episode: StoredEpisode | None) -> tuple[str, str]:
    if episode is None:
        return "lost", "its episode is not there"
    if call.call_id not in episode.texts:
        return "lost", "it was answered and is not there"
    reason = episode.excluded.get(call.call_id)
    if reason in FORGOTTEN:
        return "lost", f"it was answered and is stored as {reason}"
    if episode.texts[call.call_id] != call.text:
        return "lost", f"its agent read {call.text!r}, stored is {episode.texts[call.call_id]!r}"
    if reason is not None:
        return "excluded", ""
    return ("in_samples", "") if episode.sampled.get(call.call_id) else ("lost", "it is neither trained nor excluded")


def _check_calls(episodes: Iterable[StoredEpisode], problems: list[str]) -> None:
    """Calls = calls in samples + calls excluded with a reason, each once, answered or not."""
    for episode in episodes:
        for call_id in episode.texts:
            num_places = episode.sampled.get(call_id, 0) + (call_id in episode.excluded)
            if num_places != 1:
                problems.append(f"call {call_id} has {num_places} places in samples and exclusions")


def _check_states(played: Collection[str], episodes: Iterable[StoredEpisode], problems: list[str]) -> None:
    """Every episode came to its end by itself."""
    states = {episode.episode_id: episode.state for episode in episodes}
    if len(set(played)) != len(played):
        problems.append("an idempotency key opened an episode for two drivers")
    stuck = Counter(states.get(episode_id, "unknown") for episode_id in played)
    problems += [f"{number} episodes are {state}" for state, number in stuck.items() if state != "archived"]


def _rewards_found(seen: Seen, stored: Sequence[Accepted], problems: list[str]) -> int:
    """How many accepted rewards are there exactly once."""
    by_id = Counter(reward.reward_id for reward in stored)
    by_nonce = Counter(reward.nonce for reward in stored)
    missing = {reward.reward_id for reward in seen.accepted if by_id[reward.reward_id] != 1}
    problems += [f"reward {reward_id} is there {by_id[reward_id]} times" for reward_id in sorted(missing)]
    problems += [f"reward {nonce} was stored {n} times" for nonce, n in by_nonce.items() if n > 1]
    return len({reward.reward_id for reward in seen.accepted} - missing)


def num_refused_and_stored(seen: Seen, stored: Collection[Accepted]) -> int:
    """Rewards without a key whose driver was told that they failed, and which are there: nobody could tell it better
    where the connection broke, but a refusal should mean what it says."""
    there = {reward.nonce for reward in stored}
    return sum(nonce in there for nonce in seen.refused if nonce not in seen.keyed)


def _groups_twice(taken: Iterable[Taken]) -> dict[str, set[str]]:
    """group -> its batches, for those in more than one."""
    batches: dict[str, set[str]] = {}
    for batch in taken:
        for group_id in batch.group_ids:
            batches.setdefault(group_id, set()).add(batch.batch_id)
    return {group_id: names for group_id, names in batches.items() if len(names) > 1}
