"""compose.yml: a well-formed file whose parts exist, whose settings Hone takes, and which gives away nothing."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gateway.settings import GatewaySettings, load
from tests.deploy.files import DEPLOY, ROOT, Json, compose
from tests.deploy.flags import vllm_flags, wanted_vllm_flags
from tests.deploy.settings import known_variables
from tracker.redis_strength import WANTED
from trainer.config import load as load_trainer

COMPOSE = compose()
SERVICES: Json = COMPOSE["services"]
KNOWN = {
    "image", "build", "entrypoint", "command", "environment", "secrets", "volumes", "networks", "ports", "profiles",
    "depends_on", "deploy", "healthcheck", "user", "tmpfs", "shm_size", "restart", "read_only", "cap_drop",
    "security_opt", "stop_grace_period", "logging",
}  # fmt: skip


def volumes_of(service: Json) -> list[str]:
    return [text.split(":")[0] for text in service.get("volumes", [])]


def settings_of(name: str, tmp_path: Path) -> dict[str, str]:
    """A service's variables, with secrets in files of this test."""
    secrets = {"redis_url": "redis://:x@redis:6379/0", "database_url": "postgresql://hone:x@postgres:5432/hone"}
    env: dict[str, Any] = SERVICES[name]["environment"]
    for variable, value in env.items():
        if variable.endswith("_FILE"):
            secret = value.removeprefix("/run/secrets/")
            assert secret in SERVICES[name]["secrets"]
            (tmp_path / secret).write_text(secrets.get(secret, "a-secret\n"))
    return {key: str(value).replace("/run/secrets", str(tmp_path)) for key, value in env.items()}


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_is_well_formed_and_what_it_names_exists(name: str) -> None:
    service = SERVICES[name]
    assert set(service) <= KNOWN
    assert ("image" in service) != ("build" in service)
    assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"])
    assert set(service["networks"]) <= set(COMPOSE["networks"])
    assert set(service.get("depends_on", [])) <= set(SERVICES)
    for source in volumes_of(service):
        assert (DEPLOY / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
    if "build" in service:
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_is_pinned_hardened_and_open_to_this_machine_alone(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    if "image" in service:
        assert re.fullmatch(r"docker\.io/[\w/-]+:v?\d+\.\d+(?:\.\d+)?(-\w+)?", service["image"])
        assert service["user"].split(":")[0] != "0"
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_stores_are_reached_from_inside_alone() -> None:
    assert COMPOSE["networks"]["inside"] == {"internal": True}
    for name in ("redis", "postgres", "prometheus"):
        assert SERVICES[name]["networks"] == ["inside"]
        assert "ports" not in SERVICES[name]
    assert "ports" not in SERVICES["vllm"]


def test_services_that_others_wait_for_have_a_health_check() -> None:
    for service in SERVICES.values():
        waited: Any = service.get("depends_on", {})
        for name, how in waited.items() if isinstance(waited, dict) else ():
            assert how == {"condition": "service_healthy"}
            built = SERVICES[name].get("build")
            own = (DEPLOY / built["context"] / built["dockerfile"]).read_text() if built else ""
            assert "healthcheck" in SERVICES[name] or "HEALTHCHECK" in own


def test_every_variable_of_ours_is_a_setting() -> None:
    used = {variable for service in SERVICES.values() for variable in service.get("environment", {})}
    ours = {variable for variable in used if variable.startswith("HONE_")}
    assert ours
    assert ours <= known_variables()


def test_the_gateway_takes_its_settings(tmp_path: Path) -> None:
    settings = load(settings_of("gateway", tmp_path), tmp_path)
    assert isinstance(settings, GatewaySettings)
    assert (settings.port, settings.engine_key) == (8600, "a-secret")
    assert settings.stores.redis_url == "redis://:x@redis:6379/0"
    assert settings.stores.database_url.startswith("postgresql://")
    assert settings.otlp_endpoint is None
    (engine,) = settings.engines
    assert engine == "http://vllm:8000"


def test_the_trainer_takes_its_settings_and_trains_what_the_gateway_serves(tmp_path: Path) -> None:
    settings = load_trainer([], settings_of("trainer", tmp_path), tmp_path)
    served = load(settings_of("gateway", tmp_path), tmp_path)
    assert settings.key == "a-secret"
    assert settings.gateway_url == "http://gateway:8600"
    assert settings.stores.policies == served.stores.policies
    assert settings.stores.data_dir == served.stores.data_dir


def test_vllm_is_told_what_hone_up_tells_it() -> None:
    (line,) = SERVICES["vllm"]["command"]
    assert vllm_flags(shlex.split(line)) == wanted_vllm_flags(SERVICES["gateway"]["environment"]["HONE_POLICIES"], 0.5)


def test_all_three_mount_the_data_folder_under_one_path() -> None:
    for name in ("gateway", "trainer"):
        assert "data:/data" in SERVICES[name]["volumes"]
    assert "data:/data:ro" in SERVICES["vllm"]["volumes"]


def test_redis_is_as_durable_as_strict_mode_wants() -> None:
    words = shlex.split(SERVICES["redis"]["command"][-1])
    for name, (value, _) in WANTED.items():
        assert words[words.index(f"--{name}") + 1] == value


def test_secrets_are_made_once_and_lie_where_compose_looks(tmp_path: Path) -> None:
    script = DEPLOY / "make-secrets.sh"
    subprocess.run([script, tmp_path / "secrets"], check=True)
    made = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert set(made) == {Path(secret["file"]).name for secret in COMPOSE["secrets"].values()}
    assert len(made["engine_key"]) == 48
    assert made["redis_password"] in made["redis_url"]
    subprocess.run([script, tmp_path / "secrets"], check=True)
    assert made == {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}


def test_no_secret_is_in_the_repository() -> None:
    assert (DEPLOY / ".gitignore").read_text().splitlines() == ["secrets/", ".env"]
    listed = subprocess.run(["git", "ls-files", "deploy"], cwd=ROOT, check=True, capture_output=True, text=True)
    assert not [path for path in listed.stdout.splitlines() if "/secrets/" in path]
