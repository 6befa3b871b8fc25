"""The lists and pages of the shell, on a data folder and beside a gateway: tables for people, JSON for programs."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.terminal import visible
from tests.fakes.archived import fill
from tests.fakes.gateways import RunningGateway
from tests.fakes.recording import converse
from tracker.clock import SystemClock
from tracker.errors import HoneError, NotFound, SettingsError
from tracker.ledger import SqlLedger
from tracker.types import EpisodeHead

pytestmark = pytest.mark.slow
Json = dict[str, Any]
ASKED: list[Json] = [{"role": "user", "content": "hi"}]


def hone(folder: Path, *arguments: str, **env: str) -> str:
    """What a command prints; raises its error."""
    ran = CliRunner().invoke(app, list(arguments), env={"HONE_DATA_DIR": str(folder), **env})
    if isinstance(ran.exception, HoneError):
        raise ran.exception
    assert ran.exit_code == 0, (ran.output, ran.exception)
    return ran.stdout


def told(folder: Path, *arguments: str, **env: str) -> list[Json]:
    return [json.loads(line) for line in hone(folder, *arguments, "--json", **env).splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ninety archived episodes, and an open one whose task a terminal would obey."""

    async def filled() -> None:
        ledger = await SqlLedger.connect(f"sqlite:///{tmp_path}/hone.db", SystemClock())
        await fill(ledger, 90)
        head = EpisodeHead(episode_id="ep-open", run="r", task="\x1b[31mred\x07", created_ms=9_000)
        await ledger.create_episode(head, None, "")
        await ledger.ensure_policy("solver")
        await ledger.close()

    asyncio.run(filled())
    return tmp_path


def test_episodes_are_listed_by_filters_and_page_by_page(folder: Path) -> None:
    assert [row["episode_id"] for row in told(folder, "episodes", "--limit", "2")] == ["ep-open", "ep-00000089"]
    assert len(told(folder, "episodes", "--all")) == 91
    assert len(told(folder, "episodes", "--all", "--min-reward", "0.75", "--role", "main", "--version", "1")) == 22
    assert {row["task"] for row in told(folder, "episodes", "--task", "task 3")} == {"task 3"}
    assert told(folder, "episodes", "--tenant", "acme") == []
    ran = CliRunner().invoke(app, ["episodes", "--limit", "3", "--json"], env={"HONE_DATA_DIR": str(folder)})
    cursor = ran.stderr.split()[-1]
    assert told(folder, "episodes", "--limit", "1", "--cursor", cursor)[0]["episode_id"] == "ep-00000087"
    for wrong, match in ((("--status", "nice"), "status is one of"), (("--min-reward", "nan"), "finite")):
        with pytest.raises(HoneError, match=match):
            hone(folder, "episodes", *wrong)


def test_a_list_of_nothing_says_so_and_only_to_people(folder: Path) -> None:
    for command in (("episodes", "--run", "nobody"), ("groups", "--task", "nothing"), ("keys",)):
        ran = CliRunner().invoke(app, command, env={"HONE_DATA_DIR": str(folder)})
        assert (ran.stdout, ran.stderr) == ("", "There are none.\n")
        assert told(folder, *command) == []


def test_a_table_is_not_cut_for_a_pipe_and_obeys_nobody(folder: Path) -> None:
    table = hone(folder, "episodes", "--limit", "3")
    head, _, *rows = table.splitlines()
    assert head.split() == [
        "episode_id",
        "reward",
        "status",
        "state",
        "num_calls",
        "versions",
        "run",
        "created",
        "task",
    ]
    assert rows[0].split()[:4] == ["ep-open", "-", "-", "open"]
    assert rows[0].endswith("·[31mred·")
    assert "\x1b" not in table
    assert visible("a\tb\u202e") == "a·b·"


def test_one_episode_is_told_with_its_calls_rewards_and_exclusions(folder: Path) -> None:
    shown = told(folder, "episodes", "show", "ep-00000001")[0]
    assert (shown["reward"], shown["num_calls"], len(shown["timeline"]["calls"])) == (0.25, 3, 3)
    assert len(shown["samples"]["samples"]) == 1
    page = hone(folder, "episodes", "show", "ep-00000001")
    assert page.index("chatcmpl-ep-00000001-0") < page.index("chatcmpl-ep-00000001-2")
    assert "solver@1  main" in page
    assert "Rewards" in page
    assert "reward         0\n" in hone(folder, "episodes", "show", "ep-00000000")
    with pytest.raises(NotFound):
        hone(folder, "episodes", "show", "ep-00000001", "--tenant", "acme")
    with pytest.raises(SettingsError, match="is no data folder"):
        hone(folder / "nothing", "episodes")


def test_an_episode_whose_calls_cannot_be_read_says_so(folder: Path) -> None:
    shown = told(folder, "episodes", "show", "ep-open")[0]
    assert "cannot be read" in shown["calls_unreadable"]
    assert "cannot be read" in hone(folder, "episodes", "show", "ep-open")


def test_groups_runs_and_policies_are_told(folder: Path) -> None:
    groups = told(folder, "groups", "--all", "--state", "trained")
    assert len(groups) == 23
    shown = told(folder, "groups", "show", groups[1]["group_id"])[0]
    assert [member["reward"] for member in shown["members"]] == [0.0, 0.25, 0.5, 0.75]
    assert "4 of 4" in hone(folder, "groups", "--limit", "3")
    assert "Members" in hone(folder, "groups", "show", groups[1]["group_id"])
    assert [run["run"] for run in told(folder, "runs")] == ["default", "r"]
    assert told(folder, "runs", "show", "r")[0]["group_size"] == 4
    assert "group_size" in hone(folder, "runs", "show", "r")
    env = {"HONE_POLICIES": "solver=base"}
    assert told(folder, "policies", **env)[0]["active"] == 0
    assert "base" in hone(folder, "policies", "show", "solver", **env)
    with pytest.raises(NotFound, match="no policy 'nobody'"):
        hone(folder, "policies", "show", "nobody")


async def test_an_open_episode_is_read_and_a_policy_rolled_back_beside_a_gateway(gateway: RunningGateway) -> None:
    episode = await gateway.open()
    await gateway.chat(episode)
    settings = gateway.settings
    folder, redis_url = settings.stores.data_dir, settings.stores.redis_url or ""
    env = {"HONE_REDIS_URL": redis_url, "HONE_POLICIES": "solver=base", "HONE_ENGINES": settings.engines[0]}

    async def run(*arguments: str, **more: str) -> list[Json]:
        return await asyncio.to_thread(told, folder, *arguments, **env, **more)

    (shown,) = await run("episodes", "show", str(episode["episode_id"]))
    assert (shown["state"], len(shown["timeline"]["calls"]), shown["calls_unreadable"]) == ("open", 1, None)
    for name in ("one", "two"):
        assert (await gateway.publish(name, gateway.adapter(name, name.encode()))).status_code == 201
    assert [version["state"] for version in (await run("policies", "show", "solver"))[0]["versions"]][-1] == "active"
    key = {"HONE_API_KEY": str(gateway.admin.headers["authorization"]).removeprefix("Bearer ")}
    (answer,) = await run("policies", "rollback", "solver", "1", HONE_BASE_URL=gateway.url, **key)
    assert answer["version"] == 1
    assert (await run("policies"))[0]["active"] == 1
    with pytest.raises(HoneError, match="9"):
        await run("policies", "rollback", "solver", "9", HONE_BASE_URL=gateway.url, **key)
    with pytest.raises(SettingsError, match="set HONE_API_KEY"):
        await run("policies", "rollback", "solver", "1", HONE_BASE_URL=gateway.url)
    with pytest.raises(HoneError, match="No gateway answers"):
        await run("policies", "rollback", "solver", "1", HONE_BASE_URL="http://127.0.0.1:9", **key)
    elsewhere = {"HONE_DATA_DIR": str(folder), "HONE_BASE_URL": gateway.url, **key}  # it names no policy
    asked = ("policies", "release", "solver")
    (release,) = await asyncio.to_thread(told, folder, *asked, **elsewhere)
    assert (release["stable"], release["canary"]) == (1, None)
    (shadow,) = await run("policies", "shadow", "solver", "1", "--share", "5", HONE_BASE_URL=gateway.url, **key)
    assert shadow == {"policy": "solver", "version": 1, "share": 5.0}
    for command in (("promote", "solver", "2"), ("pause", "solver"), ("canary", "solver", "2", "--share", "20")):
        with pytest.raises(HoneError, match="trial"):  # there is none
            await run("policies", *command, HONE_BASE_URL=gateway.url, **key)
    await converse(gateway, ASKED, 2, 1.0)
    assert (await run("episodes", "--status", "archived"))[0]["num_calls"] == 2


def test_an_export_may_be_a_folder_of_parts_and_says_what_it_needs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = folder / "parts"
    command = ("export", "--run", "r", "--as", "sft", "--part-episodes", "30", "--threshold", "0.5", "--only-correct")
    told_of = told(folder, *command, "--out", f"{out}/")[0]
    assert (told_of["num_rows"], told_of["num_episodes"], told_of["left_out"]) == (132, 90, {"incorrect": 138})
    assert [path.name for path in sorted(out.iterdir())] == ["part-000000.jsonl", "part-000001.jsonl"]
    assert sum(len(path.read_text().splitlines()) for path in out.iterdir()) == 132
    whole = told(folder, "export", "--run", "r", "--as", "episodes", "--out", str(folder / "whole.jsonl"))[0]
    assert told(folder, "import", str(folder / "whole.jsonl"))[0] == {"brought": 0, "here": whole["num_rows"]}
    for arguments, match in (
        (("--as", "sft", "--only-correct"), "needs --threshold"),
        (("--format", "csv"), "jsonl or parquet"),
        (("--as", "sft", "--threshold", "nan"), "finite"),
        (("--as", "episodes", "--format", "parquet"), "as JSONL"),
    ):
        with pytest.raises(HoneError, match=match):
            hone(folder, "export", "--run", "r", "--out", str(folder / "no"), *arguments)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "gateway.exporting.parquet", raising=False)
    with pytest.raises(SettingsError, match=r"pip install '\.\[export\]'"):
        hone(folder, "export", "--run", "r", "--format", "parquet", "--out", str(folder / "no"))
