"""How many floating-point operations a step needs, counted from what goes through the model. Pure.

Counted are the matrix products: the linear layers and their adapters for every token that is run, attention for every
pair of a query and a key it sees, the head for every trained token. Base weights are frozen, so backward makes a
gradient of their input only; an adapter's weights get one too. Where a step is cut into several micro-batches, each is
run once more without gradient, because the loss is taken once on all rows (`trainer/grpo.py`). Not counted: norms,
activations, softmax, gathering; and the scores that attention computes again in backward. What is left out is about
proportional to tokens, so it hardly moves a quotient of two ways to run the same rows.

>>> Work.of([0, 1, 2], trained=1)
Work(tokens=3, pairs=6, trained=1)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tracker.samples import Row
from trainer.trie import Sharing, plan_packs


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder of the Llama kind with LoRA on all of its linear layers."""

    layers: int
    width: int
    heads: int
    key_heads: int
    head_size: int
    mlp: int
    vocabulary: int
    rank: int

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of a layer's linear maps."""
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        attention = ((self.width, queries), (self.width, keys), (self.width, keys), (queries, self.width))
        return (*attention, (self.width, self.mlp), (self.width, self.mlp), (self.mlp, self.width))

    @property
    def num_base_weights(self) -> int:
        return self.layers * sum(inputs * outputs for inputs, outputs in self.matrices)

    @property
    def num_adapter_weights(self) -> int:
        return self.layers * sum(self.rank * (inputs + outputs) for inputs, outputs in self.matrices)


SMOLLM2: Final = ModelShape(
    layers=30, width=576, heads=9, key_heads=3, head_size=64, mlp=1536, vocabulary=49152, rank=16
)


def shrunk(shape: ModelShape, layers: int) -> ModelShape:
    """Fewer layers and, in the same proportion, a smaller vocabulary: layers and head keep their shares of the work."""
    return replace(shape, layers=layers, vocabulary=round(shape.vocabulary * layers / shape.layers))


@dataclass(frozen=True, slots=True)
class Work:
    """What goes through the model in one pass over a step."""

    tokens: int
    pairs: int
    """Of a query and a key it sees, itself included, in one layer."""
    trained: int
    """Tokens whose distribution the head computes."""

    @classmethod
    def of(cls, depths: Iterable[int], trained: int) -> Work:
        """A token sees itself and as many as stand above it."""
        seen = [depth + 1 for depth in depths]
        return cls(len(seen), sum(seen), trained)


def forward(shape: ModelShape, work: Work) -> int:
    """Two operations for each weight and token, four for each pair and each part of a head, two for the vocabulary."""
    weights = shape.num_base_weights + shape.num_adapter_weights
    return 2 * work.tokens * weights + 4 * _pair_parts(shape, work) + 2 * _head(shape, work)


def backward(shape: ModelShape, work: Work) -> int:
    """Of a frozen weight the gradient of its input, of an adapter's also its own, of attention's two products four."""
    weights = shape.num_base_weights + 2 * shape.num_adapter_weights
    return 2 * work.tokens * weights + 8 * _pair_parts(shape, work) + 2 * _head(shape, work)


def step(shape: ModelShape, work: Work, num_micro_batches: int) -> int:
    """A whole step; with several micro-batches one forward pass more."""
    return (1 + (num_micro_batches > 1)) * forward(shape, work) + backward(shape, work)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one way to run the rows of a step takes."""

    num_tokens: int
    """That are run once through."""
    num_micro_batches: int
    flops: int


def cost_of(shape: ModelShape, rows: Sequence[Row], budget: int, sharing: Sharing) -> Cost:
    """As the trainer runs it, ancestors that micro-batches share counted in each of them."""
    packs = plan_packs(rows, budget, sharing)
    work = Work.of((depth for pack in packs for depth in pack.depths), _num_trained(rows))
    return Cost(work.tokens, len(packs), step(shape, work, len(packs)))


def least_cost(shape: ModelShape, rows: Sequence[Row], budget: int) -> Cost:
    """Every distinct position once, in as many micro-batches as the budget forces and without running any token again:
    what no sharing of prefixes can go below."""
    (whole,) = plan_packs(rows, sum(len(row.prompt_ids) + len(row.sampled_ids) for row in rows), "trie")
    work = Work.of(whole.depths, _num_trained(rows))
    num_micro_batches = -(-whole.num_tokens // budget)
    return Cost(work.tokens, num_micro_batches, step(shape, work, num_micro_batches))


def _num_trained(rows: Sequence[Row]) -> int:
    return sum(len(row.sampled_ids) for row in rows)


def _pair_parts(shape: ModelShape, work: Work) -> int:
    return shape.layers * work.pairs * shape.heads * shape.head_size


def _head(shape: ModelShape, work: Work) -> int:
    return work.trained * shape.width * shape.vocabulary
