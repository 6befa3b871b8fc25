"""`python -m trainer`: trains one policy until it is told to stop.

One trainer a policy and data folder: a lock file says so on this machine, the lease in SQL everywhere. SIGTERM and
SIGINT end it at once; it can be killed at any time and goes on where it was. Under `accelerate launch` it is several
processes, of which the first leads and the others follow (`ranks.py`): a signal ends those where they are.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tracker.clock import SystemClock
from tracker.errors import HoneError, SettingsError
from trainer.agreement import Agreement
from trainer.base_digest import Hashing
from trainer.config import TrainerSettings, load
from trainer.feed import Feed
from trainer.grpo import PolicyTrainer
from trainer.loop import Loop
from trainer.models import resolve_model
from trainer.ranks import Beginning, Ranks
from trainer.stopping import Stop


def main() -> int:
    """Train; the exit code is 1 with a line on standard error where something has to be mended first."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    stop, ranks, code = Stop(), Ranks(), 0
    try:
        settings = load(sys.argv[1:], os.environ, Path.cwd())
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        ranks = Ranks.join(device_of(settings))
        take_part(settings, ranks, stop)
    except HoneError as error:
        if not stop.is_set():
            print(f"trainer: {error.message}", file=sys.stderr)  # noqa: T201
            code = 1
    return ranks.leave(code, in_peace=code == 0 and not stop.is_set())


def take_part(settings: TrainerSettings, ranks: Ranks, stop: Stop) -> None:
    """Lead, or follow; told to stop, the leader just goes, and the others notice."""
    if ranks.leads:
        stop.listen()
        with only_one(settings):
            train(settings, ranks, stop)
    else:
        follow(settings, ranks)


def train(settings: TrainerSettings, ranks: Ranks, stop: Stop) -> None:
    """Wait for the lease, then run the loop until `stop`."""
    feed = Feed(settings, SystemClock(), holder_of(settings), stop, say)
    try:
        if feed.acquire():
            feed.check_runs()
            agreement = Agreement(settings, feed.renew, say)
            Loop(settings, feed, stop, say).run(lambda loop: make_trainer(settings, loop, agreement, ranks))
            if not stop.is_set():
                ranks.tell(None)
    finally:
        feed.close()


def follow(settings: TrainerSettings, ranks: Ranks) -> None:
    """Do as the leader does, from its checkpoint on, as often as it begins."""
    while (beginning := ranks.hear()) is not None:
        with TemporaryDirectory() as folder:
            model, tokenizer, _ = load_model(settings)
            trainer = PolicyTrainer(settings, model, tokenizer, ranks.follow(), ranks.follow_on)
            ranks.meet()
            trainer.run(beginning.write(Path(folder)))


def make_trainer(settings: TrainerSettings, loop: Loop, agreement: Agreement, ranks: Ranks) -> PolicyTrainer:
    """Load the base model, see that the engines serve the same, and put TRL's trainer around it."""
    ranks.tell(Beginning.of(loop.checkpoint))
    dtype = str(model_dtype(settings.dtype, device_of(settings))).removeprefix("torch.")
    together = "" if ranks.num == 1 else f", {ranks.num} processes"
    say(f"training {settings.policy.name} on {settings.policy.model} ({device_of(settings)}, {dtype}{together})")
    model, tokenizer, source = load_model(settings)
    agreement.check(model, tokenizer)
    revision: str | None = getattr(model.config, "_commit_hash", None)
    loop.facts = Hashing(source, revision, settings.work_dir / "base-digests.json").facts
    trainer = PolicyTrainer(settings, model, tokenizer, ranks.lead(loop.steps()), ranks.lead_on(loop.commit))
    ranks.meet()
    return trainer


def load_model(settings: TrainerSettings) -> tuple[Any, Any, str]:
    """The base model, its tokenizer, and where they are; what an adapter begins with follows the seed."""
    device = device_of(settings)
    source = resolve_model(settings.policy.model, settings.stores.data_dir / "models")
    models: Any = AutoModelForCausalLM
    tokenizers: Any = AutoTokenizer
    model = models.from_pretrained(source, dtype=model_dtype(settings.dtype, device)).to(device)
    torch.manual_seed(settings.seed)  # pyright: ignore[reportUnknownMemberType]
    return model, tokenizers.from_pretrained(source), source


def device_of(settings: TrainerSettings) -> str:
    """`auto`: a GPU where there is one."""
    return settings.device if settings.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")


def model_dtype(name: str, device: str) -> torch.dtype:
    """`auto`: bfloat16 on a GPU and where the CPU multiplies it natively, else float32."""
    match name:
        case "bfloat16":
            return torch.bfloat16
        case "float32":
            return torch.float32
        case _:
            native = device != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
            return torch.bfloat16 if native else torch.float32


def holder_of(settings: TrainerSettings) -> str:
    """The lease's holder: the same after a crash, so that a restart need not wait for the lease to expire."""
    place = f"{platform.node()}:{settings.stores.data_dir}"
    return f"{platform.node()}-{hashlib.sha256(place.encode()).hexdigest()[:12]}"


@contextmanager
def only_one(settings: TrainerSettings) -> Generator[None]:
    """Hold a lock that dies with the process; `SettingsError` if another process has it."""
    settings.work_dir.mkdir(parents=True, exist_ok=True)
    path = settings.work_dir / f"{settings.policy.name}.lock"
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SettingsError(f"Another trainer of policy {settings.policy.name} runs on {path.parent}.") from error
        yield


def say(line: str) -> None:
    """One line for people."""
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
