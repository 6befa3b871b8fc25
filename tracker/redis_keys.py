"""Every Redis key that Hone uses, with its time to live; nothing else builds a key.

All keys of an episode stand under one hash tag, so they can be told by eye and move together. Their time to live is
garbage collection, renewed by each call: an episode ends by its state, never by a key that runs out. Global keys are
few and owned: they stay.
"""

from __future__ import annotations

from typing import Final

EPISODE_TTL_MS: Final = 30 * 24 * 3600 * 1000
"""Longer than any episode and than any time SQL may be away; renewed by every write to the episode."""
TOMBSTONE_TTL_MS: Final = EPISODE_TTL_MS
"""A call in flight cannot outlive it; that the id is never used again is kept by SQL."""
ATTEMPT_TTL_MS: Final = 3600 * 1000
"""Longer than any SDK waits before it tries again; renewed by every attempt with the same body."""
ANSWER_TTL_MS: Final = 3600 * 1000
"""An answer that an implicit episode can go on from is kept this much longer than the episode may be idle."""
QUOTA_TTL_MS: Final = 2 * 24 * 3600 * 1000
"""Longer than any call and than a day's budget; SQL knows what a key has spent when its tally is gone."""
EPISODE_PARTS: Final = "mickbte"
"""The letters of an episode's keys, in the order in which the scripts take them."""


class RedisKeys:
    """Names under one prefix.

    >>> RedisKeys("hone").episode("ep-1")[0]
    'hone:{ep-1}:m'
    """

    __slots__ = ("due", "finishing", "prefix")

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.due = f"{prefix}:due"
        """zset of calls in flight, each `EPISODE CALL WORKER`, by deadline. Owned: emptied as calls end."""
        self.finishing = f"{prefix}:finishing"
        """set of episodes in finishing or sealed. Owned: emptied as they are archived."""

    def episode(self, episode_id: str) -> list[str]:
        """The keys of an episode, in the order of `EPISODE_PARTS`, each with `EPISODE_TTL_MS`.

        `m` hash: head, its fixed version and policy, state, status, next (index), engine, mark, at (when a call last
        began or ended, ms), idle (ms; of an implicit episode only), `pin:POLICY` -> version, `arm:POLICY` ->
        version on trial that it gets, `n:POLICY:VERSION` -> calls in flight. `i` hash: call -> index, version, policy,
        worker, intent. `c` list: records. `k` hash: call -> list index, index, lost. `b` hash: digest -> place. `t`
        hash: kind and digest -> number, kind and number -> body (or `=` and the name of its twin), kind -> next number;
        the kinds are `o` (own) and `m` (message). `e` list: events.
        """
        return [f"{self.prefix}:{{{episode_id}}}:{part}" for part in EPISODE_PARTS]

    def part(self, episode_id: str, letter: str) -> str:
        """One of the episode's keys."""
        return f"{self.prefix}:{{{episode_id}}}:{letter}"

    def tombstone(self, episode_id: str) -> str:
        """Says that an episode was deleted; `TOMBSTONE_TTL_MS`."""
        return f"{self.prefix}:{{{episode_id}}}:gone"

    def answers(self, scope: bytes, key: bytes) -> str:
        """list of answers that are found by this digest; the episode's idle time and `ANSWER_TTL_MS`."""
        return f"{self.prefix}:answer:{scope.hex()}:{key.hex()}"

    def attempts(self, scope: bytes, body_digest: str) -> str:
        """hash: the attempts with this body; `ATTEMPT_TTL_MS`."""
        return f"{self.prefix}:attempt:{scope.hex()}:{body_digest}"

    def session(self, scope: bytes, session: bytes) -> str:
        """hash: episode, since (ms); `EPISODE_TTL_MS`, renewed by every call of the session."""
        return f"{self.prefix}:session:{scope.hex()}:{session.hex()}"

    def worker(self, worker: str) -> str:
        """Lives as long as the worker's last heartbeat says."""
        return f"{self.prefix}:worker:{worker}"

    def quota(self, key_id: str) -> list[str]:
        """The keys of an API key's limits, with `QUOTA_TTL_MS` but for the last two.

        `places` zset of calls in flight, each `WORKER NAME`, by deadline. `tally` hash: spent (tokens), today, day.
        `window` list: when its last calls came, as many as its rate allows; two minutes. `swept`: dead workers' places
        were looked for; one second.
        """
        return [f"{self.prefix}:key:{{{key_id}}}:{part}" for part in ("places", "tally", "window", "swept")]

    def routing(self, policy: str) -> str:
        """hash: active, oldest, withdrawn (`,3,5,`). Owned: one for each policy."""
        return f"{self.prefix}:routing:{policy}"

    def pins(self, policy: str) -> str:
        """hash: version -> unsealed episodes that hold it. Owned: emptied as episodes are sealed."""
        return f"{self.prefix}:pins:{policy}"
