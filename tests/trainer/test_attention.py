"""The trie gives the log-probabilities, entropies and gradients of one row a call, to the last digits."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from transformers import MambaConfig, MambaForCausalLM

from tests.trainer.models import VOCABULARY, conversations, own_attention, plain_scores, row, tiny_model
from tracker.samples import Row
from trainer.attention import Layout, flex, trie_attention
from trainer.micro_batches import in_order, plan_trie
from trainer.scoring import Scores, output_embeddings, score
from trainer.trie import SHARINGS, plan_packs
from trainer.walking import walk_as_tree

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
ARCHITECTURES = ("llama", "qwen2", "sliding")

token = st.integers(0, VOCABULARY - 1)
heads = st.lists(token, min_size=1, max_size=9)
tails = st.lists(token, min_size=1, max_size=4)


@st.composite
def tries(draw: st.DrawFn) -> tuple[Row, ...]:
    """Rows that go on from, fork off and repeat each other."""
    rows = [row(draw(heads), draw(tails))]
    for number in range(draw(st.integers(0, 7))):
        before = draw(st.sampled_from(rows))
        whole = before.prompt_ids + before.sampled_ids
        kept = whole[: draw(st.integers(0, len(whole)))]
        prompt = kept + tuple(draw(st.lists(token, min_size=0 if kept else 1, max_size=6)))
        rows.append(row(prompt, draw(tails), call=f"c{number}", temperature=draw(st.sampled_from((1.0, 0.6)))))
    return tuple(rows)


def walkable(architecture: str, *, lora: bool = False, checkpointing: bool = False) -> Any:
    model: Any = tiny_model(architecture)
    assert walk_as_tree(model) == ""
    if lora:
        model = get_peft_model(model, LoraConfig(r=3, target_modules="all-linear", init_lora_weights=False)).double()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if lora:
            model.enable_input_require_grads()
    return model.train()


def gradients_of(model: Any, scores: Scores) -> list[torch.Tensor]:
    """Of something in which every log-probability and entropy counts differently."""
    weights = torch.linspace(-1, 1, len(scores.logps_N), dtype=torch.float64)
    total = (weights * scores.logps_N).sum() + ((weights**2 + 0.3) * scores.entropies_N).sum()
    return list(torch.autograd.grad(total, [one for one in model.parameters() if one.requires_grad]))


def assert_equal_to_rows(model: Any, rows: tuple[Row, ...], budget: int, sharing: Any = "trie") -> None:
    with own_attention(model):
        # Checkpointing runs layers again in the backward pass, so that has to be in here.
        expected = Scores(*plain_scores(model, rows))
        expected_gradients = gradients_of(model, expected)
    plan = plan_trie(rows, budget, sharing)
    head = output_embeddings(model)
    pieces = {number: score(model, head, passes, rows) for number, passes in enumerate(plan.micro_batches)}
    found = in_order(pieces, plan, next(head.parameters()))
    torch.testing.assert_close(found.logps_N, expected.logps_N, atol=1e-9, rtol=0)
    torch.testing.assert_close(found.entropies_N, expected.entropies_N, atol=1e-9, rtol=0)
    for one, other in zip(gradients_of(model, found), expected_gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointed"])
def test_random_tries_equal_one_row_a_call_wherever_they_are_cut(
    architecture: str, lora: bool, checkpointing: bool
) -> None:
    model = walkable(architecture, lora=lora, checkpointing=checkpointing)

    @settings(max_examples=12, suppress_health_check=list(HealthCheck), deadline=None)
    @given(tries(), st.sampled_from((1, 12, 25, 10_000)))
    def check(rows: tuple[Row, ...], budget: int) -> None:
        assert_equal_to_rows(model, rows, budget)

    check()


@pytest.mark.parametrize("sharing", SHARINGS)
def test_what_is_shared_changes_nothing(sharing: str) -> None:
    assert_equal_to_rows(walkable("sliding"), conversations(7), 40, sharing)


def test_long_segments_keep_to_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of masked queries are cut: here after a few tokens, so that several of them are needed."""
    monkeypatch.setattr("trainer.attention.MASKED_QUERIES", 4)
    trunk = list(range(30))
    rows = (row(trunk, [1, 2, 3]), row([*trunk, 1, 2, 3, 9], [4, 5]), row(trunk[:11], [7] * 14), row(trunk[:28], [8]))
    assert_equal_to_rows(walkable("sliding"), rows, 10_000)


@pytest.mark.parametrize("window", [None, 5])
def test_flex_attention_computes_the_same(window: int | None) -> None:
    """On the CPU its forward pass only; it is what runs on a GPU."""
    torch.manual_seed(0)
    (one,) = plan_packs(conversations(4), 10_000, "trie")
    layout = Layout.of(one, torch.device("cpu"))
    query, key, value = (torch.randn(1, heads, one.num_tokens, 16) for heads in (6, 2, 2))
    expected, _ = trie_attention(
        torch.nn.Identity(), query, key, value, None, layout=layout, scaling=0.3, sliding_window=window
    )
    found = flex(query, key, value, layout.mask_of(window), 0.3)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_models_that_can_be_walked_keep_what_they_say_of_single_rows(architecture: str) -> None:
    model = tiny_model(architecture, torch.float32)
    before, _ = plain_scores(model, conversations(1))
    assert walk_as_tree(model) == ""
    after, _ = plain_scores(model, conversations(1))
    assert torch.equal(before, after)


def test_models_that_cannot_be_walked_are_left_as_they_are_with_a_reason() -> None:
    assert "positions depend" in walk_as_tree(tiny_model("longrope"))
    shape = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert walk_as_tree(MambaForCausalLM(MambaConfig(**shape))) != ""


def test_a_model_whose_layers_look_elsewhere_is_found_out_by_trying() -> None:
    """A layer that mixes each token with its neighbour in the row, whatever the mask says."""
    model: Any = tiny_model("llama", torch.float32)

    def mix(_: Any, given: tuple[torch.Tensor, ...], __: Any = None) -> tuple[torch.Tensor, ...]:
        return (given[0] + given[0].roll(1, dims=1), *given[1:])

    model.model.layers[1].mlp.register_forward_pre_hook(mix)
    assert "a way of their own" in walk_as_tree(model)
    with own_attention(model):
        pass
    assert model.config._attn_implementation == "sdpa"
