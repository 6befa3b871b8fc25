import socket
import stat
from pathlib import Path

import msgspec
import pytest

from gateway.auth import digest
from gateway.local.keys import KEYS_FILE, ensure_keys
from gateway.local.plan import engine_program, plan_local, trainer_program
from gateway.local.up import refuse_taken_port
from gateway.local.words import waiting_line, welcome
from tracker.clock import SystemClock
from tracker.errors import SettingsError
from tracker.ledger import SqlLedger
from tracker.sql import open_engine, upgrade
from tracker.types import Scope

KEYS = {scope: f"key-of-{scope}" for scope in Scope}


def test_an_empty_folder_gets_the_small_model_and_all_processes(tmp_path: Path):
    plan = plan_local({}, tmp_path, [8610])
    assert [policy.model for policy in plan.settings.stores.policies] == ["smollm2"]
    assert not plan.named_policy
    assert plan.starts_redis
    assert [engine.url for engine in plan.engines] == ["http://127.0.0.1:8610"]
    assert plan.env["HONE_ENGINES"] == "http://127.0.0.1:8610"
    assert plan.env["HONE_REDIS_URL"].startswith("unix://")


def test_what_the_user_runs_already_is_not_started(tmp_path: Path):
    env = {"HONE_REDIS_URL": "redis://127.0.0.1:1/0", "HONE_ENGINES": "http://e:1", "HONE_POLICIES": "a=m"}
    plan = plan_local(env, tmp_path, [8610])
    assert not plan.starts_redis
    assert plan.engines == ()
    assert plan.env["HONE_REDIS_URL"] == env["HONE_REDIS_URL"]
    assert plan.env["HONE_ENGINES"] == env["HONE_ENGINES"]


def test_each_base_model_gets_one_engine_with_room_for_the_versions_of_its_policies(tmp_path: Path):
    plan = plan_local({"HONE_POLICIES": "a=m,b=m,c=n"}, tmp_path, [8610, 8611])
    assert [(engine.model, engine.port, engine.max_loras) for engine in plan.engines] == [
        ("m", 8610, 8),
        ("n", 8611, 4),
    ]


def test_the_engine_is_asked_for_the_base_by_the_name_that_the_gateway_uses(tmp_path: Path):
    (tmp_path / "hone.toml").write_text('[engine]\ndtype = "float32"\n')
    plan = plan_local({"HONE_POLICIES": "a=/models/m"}, tmp_path, [8610])
    argv = engine_program(plan, plan.engines[0], "engine").argv
    assert argv[argv.index("--served-model-name") + 1] == "/models/m"
    assert argv[argv.index("--dtype") + 1] == "float32"


def threads_of(argv: tuple[str, ...]) -> str | None:
    return argv[argv.index("--threads") + 1] if "--threads" in argv else None


def test_several_trainers_and_several_engines_share_the_cores(tmp_path: Path):
    one_base = plan_local({"HONE_POLICIES": "a=m,b=m"}, tmp_path, [8610], num_cores=8)
    assert threads_of(trainer_program(one_base, "a", "k").argv) == "4"
    assert threads_of(engine_program(one_base, one_base.engines[0], "engine").argv) is None
    two_bases = plan_local({"HONE_POLICIES": "a=m,b=n,c=n"}, tmp_path, [8610, 8611], num_cores=2)
    assert threads_of(trainer_program(two_bases, "a", "k").argv) == "1"
    assert threads_of(engine_program(two_bases, two_bases.engines[0], "engine").argv) == "1"
    alone = plan_local({"HONE_POLICIES": "a=m"}, tmp_path, [8610], num_cores=8)
    assert threads_of(trainer_program(alone, "a", "k").argv) is None


@pytest.mark.parametrize("more", [{"OMP_NUM_THREADS": "2"}, {"HONE_TRAINER_THREADS": "3"}])
def test_threads_that_the_user_sets_are_left_alone(tmp_path: Path, more: dict[str, str]):
    plan = plan_local({"HONE_POLICIES": "a=m,b=m", **more}, tmp_path, [8610], num_cores=8)
    assert threads_of(trainer_program(plan, "a", "k").argv) is None


def test_each_policy_has_a_trainer_and_only_it_gets_the_key(tmp_path: Path):
    plan = plan_local({"HONE_POLICIES": "a=m,b=m"}, tmp_path, [8610])
    program = trainer_program(plan, "b", "secret")
    assert program.name == "trainer-b"
    assert program.argv[program.argv.index("--policy") + 1] == "b"
    assert program.env["HONE_TRAINER_KEY"] == "secret"
    assert "HONE_TRAINER_KEY" not in plan.env


def test_a_taken_port_is_an_error_that_names_another():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"HONE_PORT={port + 1}"):
            refuse_taken_port("127.0.0.1", port)


async def test_keys_are_kept_for_their_owner_alone_and_replaced_once_they_are_good_no_more(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'hone.db'}"
    await upgrade(url)
    ledger = SqlLedger(open_engine(url), SystemClock())
    try:
        first = await ensure_keys(ledger, tmp_path, SystemClock())
        assert await ensure_keys(ledger, tmp_path, SystemClock()) == first
        for scope, key in first.items():
            stored = await ledger.find_key(digest(key))
            assert stored is not None
            assert stored.scopes == (scope,)
        agent = await ledger.find_key(digest(first[Scope.AGENT]))
        assert agent is not None
        await ledger.revoke_key(agent.tenant, agent.key_id, 1)
        admin = await ledger.find_key(digest(first[Scope.ADMIN]))
        assert admin is not None
        await ledger.rotate_key(admin.tenant, admin.key_id, "another secret's", until_ms=1)
        second = await ensure_keys(ledger, tmp_path, SystemClock())
    finally:
        await ledger.close()
    assert second[Scope.AGENT] != first[Scope.AGENT]
    assert second[Scope.ADMIN] != first[Scope.ADMIN]
    assert second[Scope.READ] == first[Scope.READ]
    file = tmp_path / KEYS_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert msgspec.json.decode(file.read_bytes()) == second


def test_keys_are_shown_only_where_nobody_else_can_reach_the_gateway(tmp_path: Path):
    shown = welcome(plan_local({}, tmp_path, [8610]), KEYS)
    assert all(key in shown for key in KEYS.values())
    assert "http://127.0.0.1:8600/dashboard" in shown
    assert "curl http://127.0.0.1:8600/v1/episodes -H 'Authorization: Bearer key-of-agent'" in shown
    hidden = welcome(plan_local({"HONE_HOST": "0.0.0.0"}, tmp_path, [8610]), KEYS)
    assert not any(key in hidden for key in KEYS.values())
    assert KEYS_FILE in hidden


def test_a_long_list_of_waiting_groups_is_cut():
    group = {"state": "open", "task": "t", "size": 8, "members": [{"reward": 1.0}] * 3}
    assert waiting_line([group] * 5) == "waiting: t 3 of 8 scored; t 3 of 8 scored; t 3 of 8 scored; and 2 more groups"
    assert waiting_line([{**group, "state": "ready"}]) == "1 groups are being trained"
    assert waiting_line([]) == "waiting for episodes"
