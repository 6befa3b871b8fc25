"""Settings for the trainer's tests: an empty data folder and a policy over a model that is passed in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracker.settings import LoraSettings, PolicySettings, StoreSettings
from trainer.config import TrainerSettings


def settings_for(folder: Path, **fields: Any) -> TrainerSettings:
    policy = PolicySettings(name="solver", model="unused", lora=LoraSettings(r=4, alpha=8))
    stores = StoreSettings(data_dir=folder, database_url=f"sqlite:///{folder / 'hone.db'}", policies=(policy,))
    return TrainerSettings(**{"stores": stores, "policy": policy, "device": "cpu", "key": "k"} | fields)
