"""Every rule, on Hone as users start it: one gateway for all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.capabilities import probed
from tests.conformance.gateway import Keys
from tests.conformance.hone import hone_gateway
from tests.conformance.runner import Verdict, run_all
from tests.conformance.suite import all_rules

pytestmark = pytest.mark.slow

CASES = {"C02", "C04", "C10", "C11", "C13", "C15", "C16", "C24", "C29", "C34", "C41", "C45"}


async def test_hone_keeps_every_rule(tmp_path: Path) -> None:
    told: list[Verdict] = []
    async with hone_gateway(tmp_path) as (gateway, engine):
        verdicts = await run_all(all_rules(), await probed(gateway, engine), engine, told.append)
    bad = [f"{v.verdict}  {v.area}: {v.rule} ({v.note})" for v in verdicts if v.verdict != "pass"]
    assert not bad, "\n".join(["", *bad])


def test_each_case_has_siblings() -> None:
    rules = all_rules()
    for case in CASES:
        assert len([rule for rule in rules if rule.case == case]) >= 3, case
    assert {rule.case for rule in rules} == CASES | {""}


def test_keys_are_named_or_one_for_all() -> None:
    assert Keys.parse("k") == Keys("k", "k", "k", "k", "k")
    named = Keys.parse("agent=a,read=r,admin=x=y,other=o")
    assert named == Keys("a", "x=y", "r", "x=y", "x=y", other="o")
