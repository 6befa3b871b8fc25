import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder, made in a process of its own; the bundled tokenizer is converted once and kept."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    command = [sys.executable, "-m", "tests.fakes.tiny_model", str(folder), str(ROOT / ".hone" / "models")]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    return folder
