"""Several processes as one trainer: who leads, what the others are told, how work is shared and summed.

The rule: rank 0 alone knows SQL, the gateway and the disk. It tells the others which checkpoint to begin with, every
step, and whether to go on after it. Each rank scores its share of the micro-batches; what they found is summed into
the whole, so that every rank takes the same loss on all rows; each carries back its own share, and the gradients of
the adapter are summed once at the end, outside of DDP's hooks. A micro-batch has no collective in it, so shares need
not be equal in number and are balanced by cost. Adding zeros is exact: what is summed of the scores is what one process
would have computed.

Waiting has no time limit: messages go through a group of their own, and a rank that is gone closes its connections,
which ends the others. Without a launcher there is one rank, and nothing here communicates.
"""

# torch.distributed and accelerate are typed in part.
# pyright: reportUnknownMemberType=false, reportPrivateImportUsage=false

from __future__ import annotations

import heapq
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from accelerate import PartialState
from torch import Tensor, nn

from tracker.errors import RankLost
from tracker.samples import Row
from tracker.timeline import num_distinct_tokens
from trainer.steps import Step

FOREVER: Final = timedelta(days=365)
SMALLEST_BUDGET: Final = 64
"""Micro-batches are not made smaller than this many tokens."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """What the others need to begin as rank 0 does: the files of its checkpoint, if it has one."""

    checkpoint: dict[str, bytes] | None

    @classmethod
    def of(cls, folder: Path | None) -> Beginning:
        """Read a checkpoint, which other machines need not see."""
        if folder is None:
            return cls(None)
        return cls({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})

    def write(self, folder: Path) -> Path | None:
        """Write the checkpoint into an empty folder; `None` if there is none."""
        if self.checkpoint is None:
            return None
        for name, content in self.checkpoint.items():
            (folder / name).write_bytes(content)
        return folder


class Ranks:
    """The processes of one trainer, seen from one of them."""

    def __init__(self, index: int = 0, num: int = 1, control: Any = None) -> None:
        self.index = index
        self.num = num
        self._control = control

    @classmethod
    def join(cls, device: str) -> Ranks:
        """Meet the processes that a launcher started beside this one; alone where there was none."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls()
        PartialState(cpu=device == "cpu")
        return cls(dist.get_rank(), dist.get_world_size(), dist.new_group(backend="gloo", timeout=FOREVER))

    @property
    def leads(self) -> bool:
        return self.index == 0

    def leave(self, code: int, *, in_peace: bool) -> int:
        """Part, with this exit code. Where not every rank has heard everything, this process ends here and now: the
        groups' own end would wait for ranks that may be gone."""
        if self.num > 1 and in_peace:
            dist.destroy_process_group()
        elif self.num > 1:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        return code

    # What rank 0 says and the others hear.

    def tell(self, message: object) -> None:
        """Rank 0: say something to the others; alone, to nobody."""
        if self.num > 1:
            self._broadcast([message])

    def hear(self) -> Any:
        """Every other rank: wait for what rank 0 says next."""
        return self._broadcast([None])[0]

    def meet(self) -> None:
        """Wait for each other without a time limit."""
        if self.num > 1:
            with _lost():
                dist.barrier(group=self._control)

    def lead(self, steps: Iterable[Step]) -> Iterator[Step]:
        """Rank 0: tell each step, and that there are no more."""
        for step in steps:
            self.tell(step)
            yield step
        self.tell(None)

    def follow(self) -> Iterator[Step]:
        """Every other rank: the steps that are told."""
        while (step := self.hear()) is not None:
            yield step

    def lead_on(self, decide: Callable[..., bool]) -> Callable[..., bool]:
        """Rank 0: tell what was decided after a step."""

        def decided(*given: Any) -> bool:
            goes_on = decide(*given)
            self.tell(goes_on)
            return goes_on

        return decided

    def follow_on(self, *_: object) -> bool:
        """Every other rank: whether to go on after this step."""
        return bool(self.hear())

    def _broadcast(self, box: list[Any]) -> list[Any]:
        with _lost():
            dist.broadcast_object_list(box, src=0, group=self._control)
        return box

    # How a step is shared.

    def budget(self, budget: int, rows: Sequence[Row]) -> int:
        """The token budget of a micro-batch: small enough that there is one for every rank, if the rows can be cut."""
        if self.num == 1:
            return budget
        num_tokens = num_distinct_tokens(row.prompt_ids + row.sampled_ids for row in rows)
        return min(budget, max(SMALLEST_BUDGET, -(-num_tokens // self.num)))

    def share(self, costs: Sequence[int]) -> tuple[int, ...]:
        """The numbers of the micro-batches that are this rank's."""
        return shares(costs, self.num)[self.index]

    def summed(self, values: Tensor) -> Tensor:
        """The sum over all ranks, on each, in place."""
        if self.num > 1:
            with _lost():
                dist.all_reduce(values)
        return values

    def sum_gradients(self, model: nn.Module) -> None:
        """Give every rank the sum of the gradients; one reduction for all parameters of a kind."""
        if self.num == 1:
            return
        for parameters in _by_kind(model).values():
            gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
            flat = self.summed(torch.cat([gradient.flatten() for gradient in gradients]))
            parts = cast("Sequence[Tensor]", flat.split([one.numel() for one in parameters]))
            for one, gradient in zip(parameters, parts, strict=True):
                one.grad = gradient.view_as(one)

    @contextmanager
    def in_memory(self, device: torch.device) -> Generator[None]:
        """Where one rank runs out of memory in this block, all ranks do at its end, and none waits for another."""
        error: torch.OutOfMemoryError | None = None
        try:
            yield
        except torch.OutOfMemoryError as caught:
            error = caught
        failed = self.summed(torch.tensor(0.0 if error is None else 1.0, device=device))
        if error is not None:
            raise error
        if self.num > 1 and float(failed) > 0:
            raise torch.OutOfMemoryError("another rank ran out of memory")


def shares(costs: Sequence[int], num_ranks: int) -> tuple[tuple[int, ...], ...]:
    """Micro-batches for each rank, the dearest first to whoever has least; the same on every rank.

    >>> shares([3, 1, 2, 2], 2)
    ((0, 1), (2, 3))
    """
    found: list[list[int]] = [[] for _ in range(num_ranks)]
    least = [(0, rank) for rank in range(num_ranks)]
    for number in sorted(range(len(costs)), key=lambda number: (-costs[number], number)):
        load, rank = heapq.heappop(least)
        found[rank].append(number)
        heapq.heappush(least, (load + costs[number], rank))
    return tuple(tuple(sorted(numbers)) for numbers in found)


def _by_kind(model: nn.Module) -> dict[tuple[torch.dtype, torch.device], list[nn.Parameter]]:
    kinds: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    return kinds


@contextmanager
def _lost() -> Generator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RankLost("Another process of this trainer is gone; this one ends too.") from error
