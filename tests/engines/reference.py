"""What an adapter's answers should be, computed by transformers and peft in this process, without any engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM


class Reference:
    """The base model and versions of it, in float32."""

    def __init__(self, model: str, adapters: Mapping[str, Path]) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        for number, (name, folder) in enumerate(adapters.items()):
            if number == 0:
                self._model = PeftModel.from_pretrained(self._model, folder, adapter_name=name).eval()
            else:
                self._model.load_adapter(folder, adapter_name=name)

    def logprobs(self, name: str | None, prompt: Sequence[int]) -> torch.Tensor:
        """Log-probabilities of every next token after a prompt, under an adapter, or under the base."""
        return self.all_logprobs(name, prompt)[-1]

    def all_logprobs(self, name: str | None, ids: Sequence[int]) -> torch.Tensor:
        """The same after every position."""
        return torch.log_softmax(self.all_logits(name, ids), -1)

    def all_logits(self, name: str | None, ids: Sequence[int]) -> torch.Tensor:
        """Before any temperature."""
        inputs = torch.tensor([list(ids)])
        with torch.inference_mode(), ExitStack() as stack:
            if name is not None:
                self._model.set_adapter(name)
            elif isinstance(self._model, PeftModel):
                stack.enter_context(self._model.disable_adapter())
            return self._model(input_ids=inputs).logits[0].float()

    def probe(self, name: str, previous: str | None, prompts: Sequence[Sequence[int]]) -> dict[str, object]:
        """The points a trainer would send: at each prompt the likely token that moved most."""
        points = []
        for prompt in prompts:
            own, before, base = (self.logprobs(version, prompt) for version in (name, previous, None))
            likely = own.topk(20).indices
            moved = torch.minimum((own - before).abs(), (own - base).abs())[likely]
            token = int(likely[moved.argmax()])
            values = {"logprob": own, "previous": before, "base": base}
            points.append(
                {"prompt_ids": list(prompt), "token_id": token, **{k: float(v[token]) for k, v in values.items()}}
            )
        return {"points": points, "noise": 0.04}

    def gap(self, name: str | None, prompt: Sequence[int], sampled: Sequence[int], told: Sequence[float]) -> float:
        """Mean distance between what an engine told of its sampled tokens and what a version gives them."""
        rows = self.all_logprobs(name, [*prompt, *sampled])[len(prompt) - 1 : -1]
        own = rows.gather(1, torch.tensor(list(sampled))[:, None])[:, 0]
        return float((own - torch.tensor(list(told))).abs().mean())
