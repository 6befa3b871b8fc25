"""A stack of several policies over tiny models, and the drivers in `examples/` as a user starts them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from gateway.client import Client
from gateway.local.plan import SOURCE_ROOT, plan_local
from gateway.local.up import LocalStack, local_stack
from tests.e2e.stack import Json, free_port, until

DRIVER_S = 900
SETTINGS = """
sweep_interval_s = 0.1
poll_interval_s = 0.5

[engine]
dtype = "float32"

[trainer]
dtype = "float32"
learning_rate = 1e-2
warmup_steps = 0
"""
POLICY = """
[[policies]]
name = "{name}"
model = "{model}"
lora = {{ r = 4 }}
"""


@contextlib.asynccontextmanager
async def stack_of(folder: Path, models: Mapping[str, Path]) -> AsyncIterator[LocalStack]:
    """What `hone up` starts for these policies; what the children said is printed at the end."""
    policies = [POLICY.format(name=name, model=model) for name, model in models.items()]
    (folder / "hone.toml").write_text(SETTINGS + "".join(policies))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HONE_", "OMP_"))}
    env |= {"HONE_DATA_DIR": str(folder / "data"), "HONE_PORT": str(free_port()), "HONE_BEGIN_TIMEOUT_S": "10"}
    ports = [free_port() for _ in set(models.values())]
    try:
        async with local_stack(plan_local(env, folder, ports, num_cores=2), print) as stack:
            yield stack
    finally:
        for log in sorted((folder / "data" / "logs").glob("*.log")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}")


async def drive(stack: LocalStack, script: str, *arguments: str) -> str:
    """Run a driver to its end; what it printed."""
    where = ("--url", stack.base_url, "--data-dir", str(stack.plan.settings.stores.data_dir))
    driving = await asyncio.create_subprocess_exec(
        sys.executable,
        str(SOURCE_ROOT / "examples" / script),
        *where,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(SOURCE_ROOT)},
    )
    try:
        async with asyncio.timeout(DRIVER_S):
            printed, _ = await driving.communicate()
    finally:
        if driving.returncode is None:
            driving.kill()
            await driving.wait()
    told = printed.decode()
    assert driving.returncode == 0, told
    return told


async def trained_batches(reader: Client, wanted: Mapping[str, int]) -> list[Json]:
    """The steps that are marked trained, once there are as many of each policy; a version is live before that."""
    found: list[Json] = []

    async def are_there() -> bool:
        found[:] = [batch async for batch in reader.batches() if batch["state"] == "trained"]
        counts = Counter(str(batch["policy"]) for batch in found)
        return all(counts[policy] >= number for policy, number in wanted.items())

    await until(are_there)
    return found
