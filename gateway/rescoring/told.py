"""What a judge is told of an episode: what was said in it, how it was rewarded so far, and its calls. Pure."""

from __future__ import annotations

from gateway.dialects.base import Json
from gateway.exporting.talks import answer_of, talk_of
from gateway.message_fold import decode_json_value
from tracker.errors import BadRequest
from tracker.timeline import Timeline, fold
from tracker.types import Call, Reward
from tracker.wholes import WholeEpisode


def told_of(whole: WholeEpisode) -> Json:
    """An episode as one JSON object; raises `CorruptRecord` where nothing of it can be read.

    `conversations` are what each branch ended in: its last request and answer, in the form of chat completions. A call
    that is in no tree (a model that is no policy, or one that failed) ends a conversation of its own.
    """
    head = whole.row.head
    calls = whole.timeline.opened().calls
    timeline = fold(calls, whole.run)
    ends = _ends(calls, timeline)
    return {
        "episode_id": head.episode_id,
        "run": head.run,
        "task": head.task,
        "group_id": head.group_id,
        "status": None if whole.row.status is None else whole.row.status.value,
        "reward": whole.row.reward,
        "rewards": [_reward(reward) for reward in whole.rewards],
        "metadata": decode_json_value(head.metadata),
        "conversations": [said for call in calls if call.call_id in ends and (said := _conversation(call))],
        "calls": [_call(call, timeline) for call in calls],
    }


def _ends(calls: tuple[Call, ...], timeline: Timeline) -> set[str]:
    placed = {node.call_id for tree in timeline.trees for node in tree.nodes}
    leaves = {branch[-1][0] for branch in timeline.branches}
    return leaves | {call.call_id for call in calls if call.call_id not in placed and call.choices}


def _conversation(call: Call) -> list[Json]:
    """What a call was asked and its first answer; empty where the words are not there."""
    try:
        talk = talk_of(call)
    except BadRequest:
        return []
    answer = answer_of(call.choices[0].message)
    asked = [{"role": "user", "content": talk.text}] if talk.text is not None else list(talk.messages)
    return [*asked, {"role": "assistant", "content": answer} if isinstance(answer, str) else answer]


def _call(call: Call, timeline: Timeline) -> Json:
    return {
        "call_id": call.call_id,
        "parent_call_id": timeline.parents.get(call.call_id),
        "role": call.role,
        "policy": call.policy,
        "version": call.version,
        "state": call.state.value,
        "answers": [answer_of(choice.message) for choice in call.choices],
        "finish_reasons": [choice.finish_reason for choice in call.choices],
    }


def _reward(reward: Reward) -> Json:
    return {name: getattr(reward, name) for name in ("name", "value", "call_id", "source")}
