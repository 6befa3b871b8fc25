"""The trainer's settings: one frozen tree, read once from the command line, `HONE_*` variables and `hone.toml`.

What the command line gives wins over `HONE_TRAINER_X`, that over the policy's own `trainer` table, and that over `x` in
the `[trainer]` table. A value that cannot work is refused with `SettingsError`. Defaults are ours and stand here: TRL's
are made for other work.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, cast

from pydantic import Field

from tracker.errors import SettingsError
from tracker.settings import PolicySettings, Settings, StoreSettings, read_settings, stores_of, validated

VARIABLE_PREFIX: Final = "trainer_"


class Optimisation(Settings):
    """How weights move. The defaults are those of the demonstration task (`docs/architecture.md`)."""

    learning_rate: float = Field(default=5e-4, gt=0)
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.99, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    warmup_steps: int = Field(default=2, ge=0)
    decay: bool = True
    """With `max_steps`: decay along a cosine to a tenth. Without, the rate stays, as nobody knows where the end is."""
    max_grad_norm: float = Field(default=1.0, gt=0)


class LossSettings(Settings):
    """What TRL's loss is told; which loss it is stands in the run."""

    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL term; the reference is the base model, with the adapter switched off."""
    epsilon: float = Field(default=0.2, ge=0, lt=1)
    epsilon_high: float | None = Field(default=None, gt=0)
    """By default 5 for cispo, 0.28 for the others."""
    entropy_coef: float = 0.0
    importance: Literal["token", "sequence"] = "token"
    """`sequence` means call. luspo is always taken by sequence and vespo by token, as their papers define them."""
    bypass: bool = False
    """Take the engine's log-probabilities as the old ones, without an off-policy weight."""
    off_policy: Literal["token", "sequence"] = "token"
    """What truncated importance sampling weighs: each token by exp(old - engine's) of its own, or each call by that of
    all its tokens together. vespo always takes it by token."""
    off_policy_cap: float = Field(default=2.0, gt=0)
    """The greatest weight."""
    max_completion_length: int = Field(default=1024, ge=1)
    """The constant by which dr_grpo divides."""


class Bounds(Settings):
    """Beyond these a step is kept and checkpointed, and its version is not published."""

    min_ess: float = Field(default=0.1, ge=0, le=1)
    min_entropy: float = Field(default=0.0, ge=0)
    max_kl: float | None = Field(default=None, gt=0)


class TrainerSettings(Settings):
    """One trainer, one policy."""

    stores: StoreSettings
    policy: PolicySettings
    gateway_url: str = "http://127.0.0.1:8600"
    key: str | None = Field(default=None, repr=False)
    """A key of scope `trainer`. Without one the gateway refuses what is published."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Of the base model; adapter weights are always fp32. `auto`: bfloat16 where it is native, else float32."""
    threads: int | None = Field(default=None, ge=1)
    max_steps: int | None = Field(default=None, ge=1)
    """Optimiser steps of the policy in all; `None` trains as long as there are groups."""
    optimisation: Optimisation = Optimisation()
    loss: LossSettings = LossSettings()
    bounds: Bounds = Bounds()
    token_budget: int = Field(default=4096, ge=1)
    """Tokens that are backpropagated at once: memory, never the result."""
    gradient_checkpointing: bool = False
    max_lora_rank: int | None = Field(default=None, ge=1)
    """The largest rank the engines take; by default they are started for the policy's."""
    parity: Literal["refuse", "warn", "off"] = "refuse"
    """What becomes of a start at which an engine reads or scores otherwise than this trainer; `off` asks none."""
    parity_depth: int | None = Field(default=None, ge=16)
    """The longest prompt that is compared; by default 384 tokens on a CPU and 4096 on a GPU."""
    report_to: str = "none"
    """One of TRL's loggers: none, tensorboard, trackio, wandb."""
    seed: int = 0
    keep_checkpoints: int = Field(default=8, ge=1)
    lease_ttl_s: float = Field(default=300.0, ge=10)
    poll_s: float = Field(default=0.5, gt=0)

    @property
    def checkpoints_dir(self) -> Path:
        return self.stores.checkpoints_dir / self.policy.name

    @property
    def work_dir(self) -> Path:
        return self.stores.data_dir / "trainer"


def load(arguments: Sequence[str], env: Mapping[str, str], cwd: Path) -> TrainerSettings:
    """Read and check everything; raises `SettingsError`."""
    given = {name: value for name, value in vars(_parser().parse_args(arguments)).items() if value is not None}
    tree = read_settings(env, cwd)
    if "data_dir" in given:
        tree["data_dir"] = given["data_dir"]
    stores = stores_of(tree, cwd)
    table = dict(cast("Mapping[str, Any]", tree.get("trainer", {})))
    over = _variables(tree) | given
    policy = _policy(stores, over.pop("policy", None) or table.pop("policy", None))
    own = _laid_over(_grouped(table), _grouped(policy.trainer), _grouped(over))
    fields: dict[str, Any] = {
        "stores": stores,
        "policy": policy,
        "gateway_url": own.pop("gateway_url", None) or tree.get("gateway_url") or _gateway_url(tree),
    }
    own.pop("data_dir", None)
    return validated(TrainerSettings, own | fields)


def _variables(tree: Mapping[str, Any]) -> dict[str, Any]:
    """`HONE_TRAINER_X` by name."""
    return {
        name.removeprefix(VARIABLE_PREFIX): value for name, value in tree.items() if name.startswith(VARIABLE_PREFIX)
    }


def _laid_over(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Later layers over earlier ones, branch by branch."""
    fields: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            known = fields.get(name)
            fields[name] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
    return fields


def _grouped(own: Mapping[str, Any]) -> dict[str, Any]:
    """Put flat names (`learning_rate`) into the branch of the tree that has them; a branch may also be a table."""
    fields: dict[str, Any] = {}
    branches = {"optimisation": Optimisation, "loss": LossSettings, "bounds": Bounds}
    for name, value in own.items():
        branch = next((key for key, model in branches.items() if name in model.model_fields), None)
        if branch is None:
            fields[name] = {**fields[name], **value} if isinstance(fields.get(name), dict) else value
        else:
            fields.setdefault(branch, {})[name] = value
    return fields


def _policy(stores: StoreSettings, name: str | None) -> PolicySettings:
    names = ", ".join(policy.name for policy in stores.policies)
    if name is None:
        if len(stores.policies) == 1:
            return stores.policies[0]
        raise SettingsError(
            f"policy: say which one this trainer trains (--policy), one of {names}."
            if names
            else "policies: there is none; set HONE_POLICIES=NAME=MODEL."
        )
    policy = stores.policy(name)
    if policy is None:
        raise SettingsError(f"policy: there is no {name!r}; there is {names or 'none'}.")
    return policy


def _gateway_url(tree: Mapping[str, Any]) -> str:
    host = str(tree.get("host", "127.0.0.1"))
    local = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 - compared, not bound
    scheme = "https" if tree.get("tls_cert") else "http"
    return f"{scheme}://{f'[{local}]' if ':' in local else local}:{tree.get('port', 8600)}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer", description="Train one policy from the groups of a data folder and publish versions."
    )
    add = parser.add_argument
    add("--data-dir", help="the data folder (HONE_DATA_DIR)")
    add("--gateway-url", help="where versions are published (HONE_GATEWAY_URL)")
    add("--policy", help="which policy, where there are several")
    add("--max-steps", type=int, help="optimiser steps of the policy in all")
    add("--device", choices=("auto", "cpu", "cuda"))
    add("--dtype", choices=("auto", "bfloat16", "float32"))
    add("--threads", type=int)
    add("--learning-rate", type=float)
    add("--token-budget", type=int)
    add("--parity", choices=("refuse", "warn", "off"), help="if an engine is not like this trainer")
    add("--report-to", help="none, tensorboard, trackio or wandb")
    add("--seed", type=int)
    return parser
