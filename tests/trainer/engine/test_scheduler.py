"""One lane on a tiny model: its log-probabilities are those of a full forward, whatever is batched and reused."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from trainer.engine.config import EngineConfig
from trainer.engine.sampling import SamplingSettings
from trainer.engine.scheduler import Ask, Event, Failure, Lane, Running, Token
from trainer.engine.slots import BLOCK
from trainer.engine.weights import cache_shape, forward, load_model

pytestmark = pytest.mark.slow

PLAIN = SamplingSettings()


@dataclass
class Got:
    """What one sequence delivered."""

    events: list[Event] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return [e.draw.token_id for e in self.events if isinstance(e, Token)]

    @property
    def logprobs(self) -> list[float]:
        return [e.draw.logprob for e in self.events if isinstance(e, Token)]


@dataclass
class Bench:
    """A model, its plain twin, and lanes on it."""

    model: PreTrainedModel
    twin: PreTrainedModel
    sizes: list[int] = field(default_factory=list)

    def lane(self, **changes: int) -> Lane:
        budget = changes.pop("max_batch_tokens", 1024)
        settings = EngineConfig(model="", **{"max_model_len": 512, **changes})
        return Lane(cache_shape(self.model.config, self.model.dtype, settings), budget)

    def run(self, ids: list[int], plan: object) -> torch.Tensor:
        self.sizes.append(len(ids))
        return forward(self.model, ids, plan)

    @torch.inference_mode()
    def finish(self, lane: Lane) -> None:
        while lane.has_work:
            lane.step(self.run)

    @torch.inference_mode()
    def full_logprobs(self, prompt: list[int], sampled: list[int], temperature: float = 1.0) -> list[float]:
        logits = self.twin(input_ids=torch.tensor([prompt + sampled])).logits[0].float() / temperature
        rows = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
        return rows.gather(1, torch.tensor(sampled)[:, None])[:, 0].tolist()


@pytest.fixture(scope="module", params=["llama", "qwen"])
def bench(request: pytest.FixtureRequest, model_folder: Path, qwen_folder: Path) -> Bench:
    folder = model_folder if request.param == "llama" else qwen_folder
    twin = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return Bench(load_model(str(folder), "float32"), twin)


def prompt(seed: int, count: int) -> list[int]:
    return torch.randint(0, 250, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def ask(lane: Lane, ids: list[int], max_tokens: int = 12, **changes: object) -> Got:
    got = Got()
    settings = {"settings": PLAIN, "end_ids": frozenset(), "seed": 1, **changes}
    lane.add(Running(Ask(tuple(ids), max_tokens, **settings), got.events.append))
    return got


def assert_exact(bench: Bench, ids: list[int], got: Got, temperature: float = 1.0) -> None:
    expected = bench.full_logprobs(ids, got.ids, temperature)
    assert max(abs(a - b) for a, b in zip(got.logprobs, expected, strict=True)) <= 1e-4


def test_logprobs_equal_a_full_forward_for_a_mixed_batch_with_shared_prefixes(bench: Bench) -> None:
    lane = bench.lane(max_batch_tokens=100)
    head = prompt(0, 70)
    prompts = [[*head, *prompt(i, 1 + 7 * i)] for i in range(12)] + [prompt(99, 1), prompt(98, 300)]
    gots = [ask(lane, ids, 3 + i, seed=i) for i, ids in enumerate(prompts)]
    bench.finish(lane)
    for i, (ids, got) in enumerate(zip(prompts, gots, strict=True)):
        assert len(got.ids) == 3 + i
        assert_exact(bench, ids, got)


def test_a_temperature_is_part_of_the_reported_distribution(bench: Bench) -> None:
    lane = bench.lane()
    got = ask(lane, prompt(1, 20), settings=SamplingSettings(temperature=0.7))
    bench.finish(lane)
    assert_exact(bench, prompt(1, 20), got, temperature=0.7)


def test_the_next_turn_reads_only_what_is_new(bench: Bench) -> None:
    lane = bench.lane()
    first = prompt(2, 64)
    got = ask(lane, first, max_tokens=20)
    bench.finish(lane)
    second = [*first, *got.ids, *prompt(3, 10)]
    bench.sizes.clear()
    again = ask(lane, second)
    bench.finish(lane)
    known = (len(first) + len(got.ids) - 1) // BLOCK * BLOCK
    assert bench.sizes[0] == len(second) - known
    assert_exact(bench, second, again)


def test_sequences_that_start_together_read_a_shared_prompt_once(bench: Bench) -> None:
    lane = bench.lane()
    shared = prompt(4, 8 * BLOCK)
    bench.sizes.clear()
    gots = [ask(lane, shared, seed=i) for i in range(8)]
    bench.finish(lane)
    assert bench.sizes[:2] == [len(shared), 1 + 7 * BLOCK]
    for got in gots:
        assert_exact(bench, shared, got)
    assert len({tuple(got.ids) for got in gots}) == 8


def test_a_seed_gives_the_same_answer_alone_and_in_company(bench: Bench) -> None:
    alone = bench.lane()
    got = ask(alone, prompt(5, 30), seed=7)
    bench.finish(alone)
    crowd = bench.lane()
    others = [ask(crowd, prompt(i, 5 * i + 1), seed=i, max_tokens=5 + i) for i in range(10, 20)]
    same = ask(crowd, prompt(5, 30), seed=7)
    bench.finish(crowd)
    assert same.ids == got.ids
    assert all(other.ids for other in others)


def test_slots_are_used_again_and_more_sequences_than_slots_all_end(bench: Bench) -> None:
    lane = bench.lane(max_num_seqs=3)
    prompts = [prompt(i, 10 + i) for i in range(11)]
    gots = [ask(lane, ids, 1 + i % 4, seed=i) for i, ids in enumerate(prompts)]
    bench.finish(lane)
    for ids, got in zip(prompts, gots, strict=True):
        assert_exact(bench, ids, got)
    assert lane.num_running == lane.num_waiting == 0


def test_a_cancelled_sequence_leaves_at_once_and_the_others_go_on_unchanged(bench: Bench) -> None:
    lane = bench.lane(max_num_seqs=2)
    events: list[Event] = []
    goner = Running(Ask(tuple(prompt(6, 20)), 50, PLAIN, frozenset()), events.append)
    waiting = Running(Ask(tuple(prompt(7, 20)), 50, PLAIN, frozenset()), events.append)
    lane.add(goner)
    stays = ask(lane, prompt(8, 20))
    lane.add(waiting)
    with torch.inference_mode():
        lane.step(bench.run)
        lane.cancel(waiting)
        lane.cancel(goner)
        lane.cancel(goner)
    assert (lane.num_running, lane.num_waiting) == (1, 0)
    bench.finish(lane)
    assert len(events) == 1
    assert_exact(bench, prompt(8, 20), stays)


def test_the_store_of_blocks_keeps_to_its_size(bench: Bench) -> None:
    lane = bench.lane(prefix_tokens=4 * BLOCK)
    gots = [(ids, ask(lane, ids)) for ids in (prompt(i, 40) for i in range(20, 26))]
    bench.finish(lane)
    for ids, got in gots:
        assert_exact(bench, ids, got)
    assert lane.num_blocks <= 4


def test_a_lane_that_fails_tells_everyone(bench: Bench) -> None:
    lane = bench.lane(max_num_seqs=1)
    gots = [ask(lane, prompt(9, 5)), ask(lane, prompt(10, 5))]
    with torch.inference_mode():
        lane.step(bench.run)
    lane.fail_all("gone")
    assert [got.events[-1] for got in gots] == [Failure("gone"), Failure("gone")]
    assert not lane.has_work


def test_an_end_token_is_delivered_as_sampled(bench: Bench) -> None:
    lane = bench.lane()
    free = ask(lane, prompt(11, 12), max_tokens=8)
    bench.finish(lane)
    end = free.ids[3]
    bounded = ask(lane, prompt(11, 12), max_tokens=8, end_ids=frozenset({end}))
    bench.finish(lane)
    assert bounded.ids == free.ids[: free.ids.index(end) + 1]
    last = bounded.events[-1]
    assert isinstance(last, Token)
    assert last.finish_reason == "stop"
