"""Schemathesis over the gateway's own description: no 5xx, and every answer is one that the description has.

It makes up requests for every operation, valid and invalid; the seed is fixed, so a run is the same run again.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.fakes.gateways import running_gateway
from tests.fakes.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.slow
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
)
PATIENCE_S = 240


async def test_no_request_made_from_the_description_breaks_it(tmp_path: Path) -> None:
    async with ScriptedEngine() as engine, running_gateway(engine, tmp_path) as gateway:
        process = await asyncio.create_subprocess_exec(
            *(str(Path(sys.executable).with_name("schemathesis")), "run", f"{gateway.url}/openapi.json"),
            *("--header", f"Authorization: {gateway.admin.headers['authorization']}"),
            *("--checks", ",".join(CHECKS), "--phases", "coverage,fuzzing", "--max-examples", "5"),
            *("--seed", "1", "--continue-on-failure", "--suppress-health-check", "all", "--warnings", "off"),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        assert process.returncode == 0, output.decode(errors="replace")[-8000:]
        assert (await gateway.admin.get("/v1/runs")).status_code == 200
