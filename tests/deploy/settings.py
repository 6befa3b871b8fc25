"""The names of all variables that Hone reads."""

from __future__ import annotations

from gateway.settings import GatewaySettings
from tracker.settings import FROM_FILES, PREFIX, StoreSettings
from trainer.config import TrainerSettings


def known_variables() -> set[str]:
    shared = {*GatewaySettings.model_fields, *StoreSettings.model_fields} - {"stores"}
    trainer = {f"trainer_{name}" for name in TrainerSettings.model_fields} | {"gateway_url", "config"}
    files = {f"{name}_file" for name in FROM_FILES}
    return {f"{PREFIX}{name.upper()}" for name in shared | trainer | files}
