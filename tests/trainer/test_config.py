"""The trainer's settings: what wins over what, and what is refused at start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracker.errors import SettingsError
from trainer.config import load

ENV = {"HONE_POLICIES": "solver=smollm2"}


def test_the_only_policy_is_trained_without_being_named(tmp_path: Path):
    settings = load([], ENV, tmp_path)
    assert settings.policy.name == "solver"
    assert settings.checkpoints_dir == tmp_path / ".hone" / "checkpoints" / "solver"


def test_one_of_several_policies_must_be_named(tmp_path: Path):
    several = {"HONE_POLICIES": "solver=a,checker=b"}
    with pytest.raises(SettingsError, match="--policy"):
        load([], several, tmp_path)
    assert load(["--policy", "checker"], several, tmp_path).policy.model == "b"
    with pytest.raises(SettingsError, match="there is no 'judge'"):
        load(["--policy", "judge"], several, tmp_path)


def test_without_a_policy_it_says_which_variable_to_set(tmp_path: Path):
    with pytest.raises(SettingsError, match="HONE_POLICIES"):
        load([], {}, tmp_path)


def test_the_command_line_wins_over_a_variable_and_that_over_the_file(tmp_path: Path):
    (tmp_path / "hone.toml").write_text("[trainer]\nlearning_rate = 1e-3\nseed = 3\nmax_steps = 7\n")
    env = ENV | {"HONE_TRAINER_SEED": "4", "HONE_TRAINER_LEARNING_RATE": "2e-3"}
    settings = load(["--learning-rate", "3e-3"], env, tmp_path)
    assert settings.optimisation.learning_rate == 3e-3
    assert (settings.seed, settings.max_steps) == (4, 7)


def test_a_policy_s_own_table_stands_over_the_common_one_and_under_variables(tmp_path: Path):
    (tmp_path / "hone.toml").write_text("""
[trainer]
learning_rate = 1e-3
max_steps = 7
loss = { beta = 0.5, epsilon = 0.1 }

[[policies]]
name = "solver"
model = "m"

[[policies]]
name = "checker"
model = "m"
trainer = { learning_rate = 1e-4, max_steps = 3, loss = { beta = 0.25 } }
""")
    solver, checker = (load(["--policy", name], {}, tmp_path) for name in ("solver", "checker"))
    assert (solver.optimisation.learning_rate, solver.max_steps, solver.loss.beta) == (1e-3, 7, 0.5)
    assert (checker.optimisation.learning_rate, checker.max_steps, checker.loss.beta) == (1e-4, 3, 0.25)
    assert checker.loss.epsilon == 0.1
    over = load(["--policy", "checker"], {"HONE_TRAINER_MAX_STEPS": "9"}, tmp_path)
    assert (over.max_steps, over.optimisation.learning_rate) == (9, 1e-4)


def test_a_name_that_a_trainer_does_not_know_is_refused_in_a_policy_s_table_too(tmp_path: Path):
    (tmp_path / "hone.toml").write_text("[[policies]]\nname = 'a'\nmodel = 'm'\ntrainer = { speed = 9 }\n")
    with pytest.raises(SettingsError, match="speed"):
        load([], {}, tmp_path)


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://127.0.0.1:9000"), ("::1", "http://[::1]:9000"), ("gate", "http://gate:9000")],
)
def test_the_gateway_is_where_its_settings_say(tmp_path: Path, host: str, url: str):
    assert load([], ENV | {"HONE_HOST": host, "HONE_PORT": "9000"}, tmp_path).gateway_url == url


@pytest.mark.parametrize(
    ("name", "value"), [("LEARNING_RATE", "0"), ("MAX_STEPS", "none"), ("ADAM_BETA1", "1"), ("SPEED", "9")]
)
def test_a_value_that_cannot_work_is_refused(tmp_path: Path, name: str, value: str):
    with pytest.raises(SettingsError, match=name.lower()):
        load([], ENV | {f"HONE_TRAINER_{name}": value}, tmp_path)


def test_the_key_is_not_shown(tmp_path: Path):
    assert "secret-key" not in repr(load([], ENV | {"HONE_TRAINER_KEY": "secret-key"}, tmp_path))
