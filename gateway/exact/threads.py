"""The earlier answers of episodes, kept by this process so that a call need not read its whole episode again.

What is kept was recorded: each entry is the view of a call in the store, so a process that has none (another worker
served the call, or this one was started again) reads the episode and finds the same. It reads only where an answer is
not found and some earlier call is not known here. The longest conversation decides; of equal answers the one that no
other call went on from, then the latest. Which prompt follows is left to `prompt.py`.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Final

from gateway.exact.history import ASSISTANT, Conversation, Ending, Match, endings
from tracker.store import EpisodeStore
from tracker.types import Call

MAX_IDS: Final = 8_000_000
"""Ids kept of all episodes, eight bytes each; the episodes asked about longest ago go first."""


class Threads:
    """The answers of the episodes that are prompted exactly."""

    def __init__(self, store: EpisodeStore, max_ids: int = MAX_IDS) -> None:
        self._store = store
        self._max_ids = max_ids
        self._num_ids = 0
        self._episodes: OrderedDict[str, _Known] = OrderedDict()

    async def find(self, episode_id: str, index: int, conversation: Conversation) -> Match | None:
        """The earlier answer that the conversation of the episode's call `index` goes on from.

        Raises `Unavailable` or `NotFound` where the episode had to be read and could not be.
        """
        known = self._episode(episode_id)
        match = known.match(conversation)
        if not conversation.has_answers or (match is not None and _is_newest(match, conversation)):
            return match
        if known.covers(index):
            return match
        for call in (await self._store.view(episode_id)).calls:
            self.note(call)
        return self._episode(episode_id).match(conversation)

    def note(self, call: Call) -> None:
        """Take a call that was recorded."""
        if call.prompting is None and call.episode_id not in self._episodes:
            return
        self._num_ids += self._episode(call.episode_id).add(call)
        while self._num_ids > self._max_ids and len(self._episodes) > 1:
            _, dropped = self._episodes.popitem(last=False)
            self._num_ids -= dropped.num_ids

    def _episode(self, episode_id: str) -> _Known:
        known = self._episodes.get(episode_id)
        if known is None:
            known = self._episodes[episode_id] = _Known()
        self._episodes.move_to_end(episode_id)
        return known


class _Known:
    """What is known of one episode."""

    __slots__ = ("_continued", "_endings", "_indexes", "num_ids")

    def __init__(self) -> None:
        self._indexes: set[int] = set()
        self._endings: defaultdict[bytes, list[Ending]] = defaultdict(list)
        self._continued: set[tuple[str, int]] = set()
        self.num_ids = 0

    def covers(self, index: int) -> bool:
        """Whether every call that began before this one is known."""
        return all(earlier in self._indexes for earlier in range(index))

    def add(self, call: Call) -> int:
        """Take a call, once; the number of ids that came with it."""
        if call.index in self._indexes:
            return 0
        self._indexes.add(call.index)
        added = endings(call)
        for ending in added:
            self._endings[ending.digest].append(ending)
        if call.prompting is not None and call.prompting.source:
            self._continued.add((call.prompting.source, call.prompting.choice))
        num_ids = len(call.prompt_ids) + sum(len(ending.sampled_ids) for ending in added)
        self.num_ids += num_ids
        return num_ids

    def match(self, conversation: Conversation) -> Match | None:
        """The longest conversation that is known to its last message, an answer."""
        for num_messages in range(len(conversation.messages), 0, -1):
            found = self._endings.get(conversation.digests[num_messages], ())
            matches = [Match(ending=ending, num_messages=num_messages) for ending in found]
            fitting = [match for match in matches if match.fits(conversation)]
            if fitting:
                return max(fitting, key=self._preference)
        return None

    def _preference(self, match: Match) -> tuple[bool, int, int]:
        ending = match.ending
        return (ending.call_id, ending.choice) not in self._continued, ending.index, ending.choice


def _is_newest(match: Match, conversation: Conversation) -> bool:
    """Whether no answer of the conversation comes after the one that was found."""
    return not any(message.get("role") == ASSISTANT for message in conversation.messages[match.num_messages :])
