"""Continuous batching for one version: which sequences read or write which tokens in the next step.

A lane is one version's queue, running sequences and cache. A step gives every running sequence its next token or the
next piece of its prompt, in one forward, and admits waiting sequences into free slots first. The rule: a sequence lives
in one lane from its first token to its last, so its answer never changes version midway, and the prefix blocks it meets
were made by the same weights. A lane is used by one thread; which lane steps next, and with which adapter, is left to
the worker; text, stop strings and HTTP to the other side of `deliver`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from trainer.engine.attention import Piece, StepPlan, plan_step
from trainer.engine.sampling import Draw, SamplingSettings, draw
from trainer.engine.slots import BLOCK, CacheShape, SlotCache, block_keys

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Ask:
    """What is to be generated: one sequence, from ids alone."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    settings: SamplingSettings
    end_ids: frozenset[int]
    """Tokens that end the answer once sampled."""
    seed: int | None = None
    num_top: int = 0


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token on its way out, with the reason if it is the last one."""

    draw: Draw
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """No further token will come: the engine stops or a step failed."""

    message: str


Event = Token | Failure
Deliver = Callable[[Event], None]


@dataclass(slots=True, eq=False)
class Running:
    """One sequence on its way through a lane: `num_done` of its `ids` (prompt and sampled) are in its slot."""

    ask: Ask
    deliver: Deliver
    ids: list[int] = field(init=False)
    generator: torch.Generator = field(init=False)
    num_done: int = 0
    slot: int = -1

    def __post_init__(self) -> None:
        self.ids = list(self.ask.prompt_ids)
        self.generator = torch.Generator()
        if self.ask.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(self.ask.seed)

    @property
    def num_sampled(self) -> int:
        return len(self.ids) - len(self.ask.prompt_ids)

    def take(self, one: Draw) -> Token:
        """Append a sampled token and say whether it was the last one."""
        self.ids.append(one.token_id)
        if one.token_id in self.ask.end_ids:
            return Token(one, "stop")
        return Token(one, "length" if self.num_sampled >= self.ask.max_tokens else None)


class Lane:
    """The queue, the running sequences and the cache of one version."""

    def __init__(self, shape: CacheShape, max_batch_tokens: int) -> None:
        self._shape = shape
        self._cache = SlotCache(shape)
        self._max_batch_tokens = max_batch_tokens
        self._waiting: deque[Running] = deque()
        self._running: list[Running] = []

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_blocks(self) -> int:
        """Blocks of prompts kept for sequences to come."""
        return self._cache.num_blocks

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def add(self, one: Running) -> None:
        self._waiting.append(one)

    def cancel(self, one: Running) -> None:
        """Forget a sequence, wherever it is; one that has ended already is no error."""
        if one.slot >= 0:
            self._release(one)
        elif one in self._waiting:
            self._waiting.remove(one)

    def fail_all(self, message: str) -> None:
        for one in [*self._running, *self._waiting]:
            one.deliver(Failure(message))
        self._running.clear()
        self._waiting.clear()

    def step(self, run: Callable[[Sequence[int], StepPlan], torch.Tensor]) -> None:
        """Take one step: admit, forward the next tokens of everyone, sample, deliver. `run` is the model."""
        self._admit()
        chosen = self._pieces()
        if not chosen:
            return
        plan = plan_step(self._cache, [piece for _, piece in chosen], self._shape.dtype)
        ordered = [chosen[i] for i in plan.order]
        ids = [i for one, piece in ordered for i in one.ids[piece.start : piece.start + piece.count]]
        logits_PV = run(ids, plan)
        self._advance([one for one, _ in ordered], [piece for _, piece in ordered], logits_PV)

    def _admit(self) -> None:
        """Move waiting sequences into free slots, in order.

        One whose next block is just being read by another new sequence waits a step and then finds it in the store:
        episodes of one group start together with the same prompt.
        """
        being_read: set[bytes] = set()
        postponed: list[Running] = []
        while self._waiting and self.num_running < self._shape.max_slots:
            one = self._waiting.popleft()
            known = self._cache.num_known(one.ids)
            missing = block_keys(one.ids, len(one.ids) // BLOCK)[known // BLOCK :]
            if missing and missing[0] in being_read and known + BLOCK < len(one.ids):
                postponed.append(one)
                continue
            being_read.update(missing)
            one.slot = self.num_running
            self._cache.reserve(one.slot + 1, len(one.ids) + 1)
            one.num_done = self._cache.fill_from_blocks(one.slot, one.ids)
            self._running.append(one)
        self._waiting.extendleft(reversed(postponed))

    def _pieces(self) -> list[tuple[Running, Piece]]:
        """Choose the tokens of the step: next tokens first, then prompts as far as the budget goes."""
        left = self._max_batch_tokens
        chosen: list[tuple[Running, Piece]] = []
        for one in sorted(self._running, key=lambda r: len(r.ids) - r.num_done > 1):
            count = min(len(one.ids) - one.num_done, left)
            if count:
                chosen.append((one, Piece(one.slot, one.num_done, count)))
                left -= count
        self._cache.reserve(self.num_running, max((p.start + p.count for _, p in chosen), default=0))
        return chosen

    def _advance(self, ordered: list[Running], pieces: list[Piece], logits_PV: torch.Tensor) -> None:
        """Note what was read, and sample for every sequence that is at its end."""
        for one, piece in zip(ordered, pieces, strict=True):
            one.num_done += piece.count
            self._cache.keep_blocks(one.slot, one.ids, piece.start, one.num_done)
        rows = [row for row, one in enumerate(ordered) if one.num_done == len(one.ids)]
        if not rows:
            return
        ready = [ordered[row] for row in rows]
        draws = draw(
            logits_PV[rows],
            [one.ask.settings for one in ready],
            [one.generator for one in ready],
            [one.ask.num_top for one in ready],
        )
        for one, drawn in zip(ready, draws, strict=True):
            token = one.take(drawn)
            if token.finish_reason is not None:
                self._release(one)
            one.deliver(token)

    def _release(self, one: Running) -> None:
        """Free a slot and move the last one into it, so that the slots in use stay dense."""
        last = self._running[-1]
        if last is not one:
            self._cache.move(last.slot, one.slot, last.num_done)
            last.slot = one.slot
            self._running[last.slot] = last
        self._running.pop()
        one.slot = -1
