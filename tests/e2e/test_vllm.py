"""Two training steps with a real vLLM, started as `hone up --engine vllm` starts it, over the model in the wheel."""

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.local.plan import SOURCE_ROOT
from gateway.local.vllm import find_command
from tests.e2e.stack import player, running_stack, until
from tracker.errors import SettingsError

pytestmark = pytest.mark.slow
MODELS = SOURCE_ROOT / ".hone" / "models"


@pytest.fixture
def model() -> Path:
    """The folder of the model in the wheel; the test is skipped where there is no vLLM."""
    try:
        find_command(None, None, (SOURCE_ROOT,))
    except SettingsError as error:
        pytest.skip(error.message)
    command = [sys.executable, "-m", "trainer.models", "smollm2", "--cache-dir", str(MODELS)]
    done = subprocess.run(command, check=True, cwd=SOURCE_ROOT, capture_output=True, text=True)
    return Path(done.stdout.splitlines()[-1])


async def test_two_steps_on_vllm(model: Path, tmp_path: Path):
    async with running_stack(tmp_path, model, HONE_LOCAL_ENGINE="vllm") as stack, player(stack) as play:
        assert "vllm" in stack.child("engine").program.argv[2]
        await play.until_version(2)

        async def is_trained() -> bool:
            return sum(batch["state"] == "trained" for batch in await play.batches()) >= 2

        await until(is_trained)
        versions = {each["version"]: each for each in (await play.reader.policies())[0]["versions"]}
        for number in (1, 2):
            assert versions[number]["detail"].startswith("probe: ok"), versions[number]
        (engine,) = await play.reader.engines()
        assert engine["fitness"] == "ready"
        assert versions[2]["folder"] in engine["adapters"]
        first = (await play.batches())[0]["metrics"]
        assert first["lag_max"] == 0
        assert first["gap_at_no_lag"]["mean"] < 1e-3, first
