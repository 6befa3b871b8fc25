"""The forms of export: what a row of each says, from one episode (of preferences: `preferences.py`). Pure.

`rows` are tokens, one line for each trained choice; `samples` are merged branches. `sft` and `grpo` are TRL's
prompt-completion type, one line for each trained choice, conversational where the agent spoke in messages. `dpo` is its
preference type, made from groups. What is not trained never becomes a row of any form: it is counted, by
reason. Every row says whose it is: episode, call, the call it continues, role, version, and whether it was correct.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gateway.exporting.talks import Talk, answer_of, talk_of
from gateway.message_fold import encode_json
from tracker.credit import call_rewards
from tracker.errors import BadRequest
from tracker.samples import rows_of, samples_of
from tracker.timeline import Timeline, fold, included
from tracker.types import Call, Choice, EpisodeRow, Record
from tracker.wholes import WholeEpisode

Row = dict[str, Any]
UNSCORED: Final = "unscored"
INCORRECT: Final = "incorrect"
NO_MEMBER: Final = "no_member"
UNREADABLE: Final = "unreadable"


class Form(enum.StrEnum):
    """What becomes of an episode."""

    ROWS = "rows"
    SAMPLES = "samples"
    GRPO = "grpo"
    SFT = "sft"
    DPO = "dpo"
    EPISODES = "episodes"


class Kind(enum.Enum):
    """What stands in a column."""

    TEXT = enum.auto()
    INT = enum.auto()
    FLOAT = enum.auto()
    BOOL = enum.auto()
    INTS = enum.auto()
    FLOATS = enum.auto()
    """A list in which there may be nulls."""
    OBJECTS = enum.auto()
    """A list of JSON objects, messages among them."""


class Wanted(Record, frozen=True):
    """What of an episode is asked for."""

    form: Form
    policy: str | None = None
    role: str | None = None
    threshold: float | None = None
    """A reward from here on is correct."""
    only_correct: bool = False
    margin: float = 0.0
    """By how much the rewards of a pair must differ, at least."""

    def takes(self, call: Call) -> bool:
        """Whether a call is asked for at all."""
        return self.policy in (None, call.policy) and self.role in (None, call.role)


class Opened(Record, frozen=True):
    """An episode whose calls were read and folded."""

    whole: WholeEpisode
    calls: tuple[Call, ...]
    timeline: Timeline


_EPISODE: Final = {
    "episode_id": Kind.TEXT,
    "run": Kind.TEXT,
    "task": Kind.TEXT,
    "group_id": Kind.TEXT,
    "status": Kind.TEXT,
    "reward": Kind.FLOAT,
    "advantage": Kind.FLOAT,
    "correct": Kind.BOOL,
}
_CALL: Final = {
    "call_id": Kind.TEXT,
    "choice": Kind.INT,
    "parent_call_id": Kind.TEXT,
    "role": Kind.TEXT,
    "policy": Kind.TEXT,
    "version": Kind.INT,
    "call_reward": Kind.FLOAT,
}
_TOKENS: Final = {
    "adapter_digest": Kind.TEXT,
    "prompt_ids": Kind.INTS,
    "sampled_ids": Kind.INTS,
    "logprobs": Kind.FLOATS,
    "temperature": Kind.FLOAT,
    "finish_reason": Kind.TEXT,
    "receipt": Kind.TEXT,
}
_PAIR: Final = {
    f"{side}_{name}": kind
    for side in ("chosen", "rejected")
    for name, kind in {
        "reward": Kind.FLOAT,
        "episode_id": Kind.TEXT,
        "call_id": Kind.TEXT,
        "choice": Kind.INT,
        "parent_call_id": Kind.TEXT,
        "version": Kind.INT,
        "correct": Kind.BOOL,
    }.items()
}


def columns(form: Form, *, is_text: bool = False) -> dict[str, Kind]:
    """The columns of a form, in their order; `is_text` where prompts are those of completions."""
    said = Kind.TEXT if is_text else Kind.OBJECTS
    tools = {} if is_text else {"tools": Kind.TEXT}
    match form:
        case Form.ROWS:
            return {**_EPISODE, **_CALL, **_TOKENS}
        case Form.SAMPLES:
            sample = {"policy": Kind.TEXT, "input_ids": Kind.INTS, "loss_mask": Kind.INTS, "logprobs": Kind.FLOATS}
            return {**_EPISODE, "role": Kind.TEXT, **sample, "spans": Kind.OBJECTS}
        case Form.GRPO | Form.SFT:
            return {"prompt": said, "completion": said, **tools, **_EPISODE, **_CALL, "finish_reason": Kind.TEXT}
        case Form.DPO:
            pair = {"prompt": said, "chosen": said, "rejected": said, **tools}
            named = {"run": Kind.TEXT, "task": Kind.TEXT, "group_id": Kind.TEXT, "role": Kind.TEXT}
            return {**pair, **named, "policy": Kind.TEXT, **_PAIR}
        case Form.EPISODES:
            raise BadRequest("Whole episodes are written as JSONL: write --format jsonl.")


def opened(whole: WholeEpisode) -> Opened:
    """Read the calls of an episode; raises `CorruptRecord`."""
    calls = whole.timeline.opened().calls
    return Opened(whole=whole, calls=calls, timeline=fold(calls, whole.run))


def episode_rows(episode: Opened, wanted: Wanted, left_out: Counter[str]) -> Iterator[Row]:
    """The rows of an episode; what is left out is counted in `left_out`, choice by choice."""
    left_out.update(reason.value for reason in episode.timeline.excluded.values())
    match wanted.form:
        case Form.SAMPLES:
            yield from _samples(episode, wanted)
        case Form.ROWS:
            yield from _token_rows(episode, wanted)
        case Form.GRPO | Form.SFT:
            yield from said_rows(episode, wanted, left_out)
        case Form.DPO | Form.EPISODES:
            raise AssertionError(f"{wanted.form} is not made from one episode's calls")


def correct(reward: float | None, threshold: float | None) -> bool | None:
    """Whether a reward is that of a correct attempt; `None` where nobody can say."""
    return None if reward is None or threshold is None else reward >= threshold


def _episode_fields(row: EpisodeRow, whole: WholeEpisode, wanted: Wanted) -> Row:
    standing = None if whole.group is None else whole.group.standing
    return {
        "episode_id": row.head.episode_id,
        "run": row.head.run,
        "task": row.head.task,
        "group_id": row.head.group_id,
        "status": None if row.status is None else row.status.value,
        "reward": row.reward,
        "advantage": None if standing is None else standing.advantage,
        "correct": correct(row.reward, wanted.threshold),
    }


def _call_fields(call: Call, choice: Choice, episode: Opened, rewards: Mapping[str, float]) -> Row:
    return {
        "call_id": call.call_id,
        "choice": choice.index,
        "parent_call_id": episode.timeline.parents.get(call.call_id),
        "role": call.role,
        "policy": call.policy,
        "version": call.version,
        "call_reward": rewards.get(call.call_id),
    }


def _call_rewards(episode: Opened) -> dict[str, float]:
    return call_rewards(episode.whole.rewards, episode.whole.run.reward_weights)


def _samples(episode: Opened, wanted: Wanted) -> Iterator[Row]:
    told = _episode_fields(episode.whole.row, episode.whole, wanted)
    roles = {call.call_id: call.role for call in episode.calls}
    samples, _ = samples_of(episode.calls, episode.whole.run, _call_rewards(episode))
    for sample in samples:
        role = roles[sample.spans[0].call_id] if sample.spans else None
        if not sample.spans or wanted.policy not in (None, sample.policy) or wanted.role not in (None, role):
            continue
        yield {
            **told,
            "role": role,
            "policy": sample.policy,
            "input_ids": sample.input_ids,
            "loss_mask": sample.loss_mask,
            "logprobs": sample.logprobs,
            "spans": [{name: getattr(span, name) for name in span.__struct_fields__} for span in sample.spans],
        }


def _token_rows(episode: Opened, wanted: Wanted) -> Iterator[Row]:
    told, rewards = _episode_fields(episode.whole.row, episode.whole, wanted), _call_rewards(episode)
    chosen = {(call.call_id, choice.index): (call, choice) for call in episode.calls for choice in call.choices}
    for policy in sorted({call.policy for call in episode.calls if call.policy is not None and wanted.takes(call)}):
        for row in rows_of(episode.calls, episode.whole.run, policy):
            call, choice = chosen[row.call_id, row.choice]
            if wanted.takes(call):
                yield {
                    **told,
                    **_call_fields(call, choice, episode, rewards),
                    "adapter_digest": row.adapter_digest,
                    "prompt_ids": row.prompt_ids,
                    "sampled_ids": row.sampled_ids,
                    "logprobs": row.logprobs,
                    "temperature": row.temperature,
                    "finish_reason": choice.finish_reason,
                    "receipt": row.receipt.hex(),
                }


def said_rows(episode: Opened, wanted: Wanted, left_out: Counter[str], *, is_paired: bool = False) -> Iterator[Row]:
    """One row for each trained choice, in words; for pairs whether it is correct is looked at later."""
    chosen = [
        (call, choice) for call, choice in included(episode.calls, episode.timeline.excluded) if wanted.takes(call)
    ]
    told, rewards = _episode_fields(episode.whole.row, episode.whole, wanted), _call_rewards(episode)
    reason = _unfit(episode, wanted, is_paired=is_paired)
    if reason is not None:
        left_out[reason] += len(chosen)
        return
    talks = _Talks()
    for call, choice in chosen:
        row = talks.row(call, choice)
        if row is None:
            left_out[UNREADABLE] += 1
            continue
        fields = _call_fields(call, choice, episode, rewards)
        yield {**row, **told, **fields, "finish_reason": choice.finish_reason}


def _unfit(episode: Opened, wanted: Wanted, *, is_paired: bool) -> str | None:
    """Why nothing of an episode is a row, if so."""
    whole = episode.whole
    if wanted.form is not Form.SFT and whole.row.reward is None:
        return UNSCORED
    if wanted.form is Form.GRPO and whole.group is not None and whole.group.place is None:
        return NO_MEMBER
    is_wanted = is_paired or not wanted.only_correct or correct(whole.row.reward, wanted.threshold)
    return None if is_wanted else INCORRECT


class _Talks:
    """What calls were asked, each read once."""

    def __init__(self) -> None:
        self._seen: dict[str, Talk | None] = {}

    def row(self, call: Call, choice: Choice) -> Row | None:
        """The words of a choice; `None` where they are not there."""
        if call.call_id not in self._seen:
            self._seen[call.call_id] = _talk(call)
        talk = self._seen[call.call_id]
        answer = answer_of(choice.message)
        if talk is None:
            return None
        if talk.text is not None:
            return {"prompt": talk.text, "completion": answer} if isinstance(answer, str) else None
        if isinstance(answer, str) or not talk.messages:
            return None
        tools = encode_json(talk.tools or None).decode()  # never null: who guesses types would guess wrong
        return {"prompt": list(talk.messages), "completion": [answer], "tools": tools}


def _talk(call: Call) -> Talk | None:
    try:
        return talk_of(call)
    except BadRequest:
        return None
