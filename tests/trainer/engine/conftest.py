"""A tiny random model, adapters for it, and engines over real sockets."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest
import torch
import uvicorn
from peft import LoraConfig, get_peft_model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from trainer.engine.app import create_app
from trainer.engine.config import EngineConfig

TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for c in m.get('tool_calls', []) %}{{ c['function']['arguments'] | tojson }}{% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB = 256 + len(SPECIAL)

# peft 0.21 asks transformers 5.24 by a name that it deprecates.
KNOWN_WARNINGS = ("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for line in KNOWN_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(line))


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, so that every text round-trips and multi-byte characters come in pieces."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={char: number for number, char in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>", clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def write_model(folder: Path, kind: str) -> Path:
    """Save a random two-layer model whose distributions are neither flat nor certain."""
    torch.manual_seed(11)
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 4096,
        "eos_token_id": VOCAB - 1,
        "initializer_range": 0.4,
    }
    model = LlamaForCausalLM(LlamaConfig(**sizes)) if kind == "llama" else Qwen3ForCausalLM(Qwen3Config(**sizes))
    model.generation_config.eos_token_id = VOCAB - 1
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny", "llama")


@pytest.fixture(scope="session")
def qwen_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "qwen", "qwen3")


@pytest.fixture(scope="session")
def make_adapter(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Write an adapter with random weights, clearly different for each seed."""

    def make(seed: int, **changes: object) -> Path:
        torch.manual_seed(seed)
        settings = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **changes}
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(model_folder), LoraConfig(**settings))
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.data.normal_(0.0, 0.3)
        folder = tmp_path_factory.mktemp("adapters") / f"a{seed}"
        model.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def adapter_1(make_adapter: Callable[..., Path]) -> Path:
    return make_adapter(1)


@pytest.fixture(scope="session")
def adapter_2(make_adapter: Callable[..., Path]) -> Path:
    return make_adapter(2)


@contextmanager
def running_engine(settings: EngineConfig) -> Iterator[str]:
    """Serve an engine on a socket of its own, and yield its URL."""
    bound = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(create_app(settings), log_level="warning", lifespan="on", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[bound])))
    thread.start()
    try:
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        # The socket listens from the start: the request waits in its queue until the model is there.
        assert httpx.get(url + "/health", timeout=60).status_code == 200
        yield url
    finally:
        server.should_exit = True
        thread.join()
        bound.close()


@pytest.fixture(scope="session")
def start_engine(model_folder: Path) -> Callable[..., AbstractContextManager[str]]:
    """Start a fresh engine with changed settings."""

    def start(**changes: object) -> AbstractContextManager[str]:
        settings = {"model": str(model_folder), "dtype": "float32", "max_model_len": 512, **changes}
        return running_engine(EngineConfig(**settings))

    return start


@pytest.fixture(scope="session")
def engine(start_engine: Callable[..., AbstractContextManager[str]]) -> Iterator[str]:
    """One engine for the tests that leave nothing behind."""
    with start_engine() as url:
        yield url
