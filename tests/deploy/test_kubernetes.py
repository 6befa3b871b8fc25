"""The manifests: objects that fit each other, pods that may do little, settings that Hone takes."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.settings import load
from tests.deploy.files import DEPLOY, Json, kustomization, manifests, workloads
from tests.deploy.flags import vllm_flags, wanted_vllm_flags
from tests.deploy.settings import known_variables
from tracker.redis_strength import WANTED
from trainer.config import load as load_trainer

VERSIONS = {
    "Namespace": "v1",
    "PersistentVolumeClaim": "v1",
    "Service": "v1",
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "PodDisruptionBudget": "policy/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
}
SECRETS = {
    "redis_password": "p",
    "redis_url": "redis://:p@redis:6379/0",
    "postgres_password": "p",
    "database_url": "postgresql://hone:p@postgres/hone",
    "engine_key": "e",
    "trainer_key": "t",
}
WORKLOADS = list(workloads())
COMMON = dict(item.split("=", 1) for item in kustomization()["configMapGenerator"][0]["literals"])


def of_kind(kind: str) -> dict[str, Json]:
    return {item["metadata"]["name"]: item for item in manifests() if item["kind"] == kind}


def env_of(container: Json) -> dict[str, str]:
    """A container's variables as its process sees them."""
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        assert source == {"configMapRef": {"name": "hone"}}
        found |= COMMON
    for item in container.get("env", []):
        if "value" in item:
            found[item["name"]] = item["value"]
        else:
            reference: dict[str, Any] = item["valueFrom"]["secretKeyRef"]
            assert reference["name"] == "hone"
            found[item["name"]] = SECRETS[reference["key"]]
    return found


def named(name: str) -> Json:
    return next(container for found, _, container in WORKLOADS if found == name)


def test_every_object_has_the_version_of_its_kind_and_a_name_of_its_own() -> None:
    seen = [(item["kind"], item["metadata"]["name"]) for item in manifests()]
    assert len(set(seen)) == len(seen)
    assert all(VERSIONS[item["kind"]] == item["apiVersion"] for item in manifests())


@pytest.mark.parametrize(("name", "item", "container"), WORKLOADS, ids=[name for name, _, _ in WORKLOADS])
def test_a_workload_fits_itself(name: str, item: Json, container: Json) -> None:
    spec, pod = item["spec"], item["spec"]["template"]["spec"]
    assert spec["selector"]["matchLabels"].items() <= item["spec"]["template"]["metadata"]["labels"].items()
    own = {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
    there = {volume["name"] for volume in pod.get("volumes", [])} | own
    assert {mount["name"] for mount in container["volumeMounts"]} == there
    for volume in pod.get("volumes", []):
        if "persistentVolumeClaim" in volume:
            assert volume["persistentVolumeClaim"]["claimName"] in of_kind("PersistentVolumeClaim")
    if item["kind"] == "StatefulSet":
        assert spec["serviceName"] in of_kind("Service")
    ports = {port["name"] for port in container.get("ports", [])}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        if "httpGet" in container.get(probe, {}):
            assert container[probe]["httpGet"]["port"] in ports


@pytest.mark.parametrize(("name", "item", "container"), WORKLOADS, ids=[name for name, _, _ in WORKLOADS])
def test_a_pod_may_do_little(name: str, item: Json, container: Json) -> None:
    pod = item["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    wanted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert container["securityContext"] == wanted
    assert container["resources"]["requests"]["cpu"]
    assert container["resources"]["limits"]["memory"]


def test_images_are_ours_with_a_tag_or_pinned() -> None:
    ours = {image["name"] for image in kustomization()["images"] if image["newTag"] != "latest"}
    assert all(container["image"] in ours or container["image"].count(":") == 1 for _, _, container in WORKLOADS)


def test_variables_of_ours_are_settings() -> None:
    used = {name for _, _, container in WORKLOADS for name in env_of(container) if name.startswith("HONE_")}
    assert used <= known_variables()


def test_gateway_and_trainer_take_their_settings(tmp_path: Path) -> None:
    served = load(env_of(named("gateway")), tmp_path)
    trained = load_trainer([], env_of(named("trainer")), tmp_path)
    replicas = of_kind("StatefulSet")["vllm"]["spec"]["replicas"]
    assert served.engines == tuple(f"http://vllm-{number}.vllm:8000" for number in range(replicas))
    assert (served.engine_key, trained.key) == ("e", "t")
    assert trained.stores.policies == served.stores.policies
    assert trained.gateway_url == "http://gateway:8600"
    assert {"/data"} == {
        mount["mountPath"]
        for name in ("gateway", "trainer", "vllm")
        for mount in named(name)["volumeMounts"]
        if mount["name"] == "data"
    }
    grace = of_kind("Deployment")["gateway"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > served.shutdown_s + served.record_timeout_s + 5


def test_vllm_is_told_what_hone_up_tells_it() -> None:
    container = named("vllm")
    assert vllm_flags([*container["command"], *container["args"]]) == wanted_vllm_flags(COMMON["HONE_POLICIES"], 0.9)


def test_redis_is_as_durable_as_strict_mode_wants() -> None:
    words = shlex.split(named("redis")["args"][0])
    for name, (value, _) in WANTED.items():
        assert words[words.index(f"--{name}") + 1] == value


def test_services_budgets_and_policies_select_pods_that_are_there() -> None:
    labels = [item["spec"]["template"]["metadata"]["labels"] for _, item, _ in WORKLOADS]
    ports = {name: {port["name"] for port in container.get("ports", [])} for name, _, container in WORKLOADS}
    for name, service in of_kind("Service").items():
        assert any(service["spec"]["selector"].items() <= told.items() for told in labels)
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports[name]
    for name, policy in of_kind("NetworkPolicy").items():
        spec = policy["spec"]
        chosen = spec["podSelector"].get("matchLabels", {})
        assert any(chosen.items() <= told.items() for told in labels)
        for rule in spec.get("ingress", []):
            assert {port["port"] for port in rule["ports"]} <= ports[name]
            for who in rule["from"]:
                pod = who.get("podSelector", {}).get("matchLabels", {})
                assert any(pod.items() <= told.items() for told in labels)
    budget = of_kind("PodDisruptionBudget")["gateway"]["spec"]
    assert budget["minAvailable"] < of_kind("Deployment")["gateway"]["spec"]["replicas"]


def test_everything_is_closed_and_each_workload_that_listens_is_opened_to_somebody() -> None:
    policies = of_kind("NetworkPolicy")
    assert policies["nobody"]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    listening = {name for name, _, container in WORKLOADS if container.get("ports")}
    assert listening == set(policies) - {"nobody"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl here")
def test_kustomize_builds_it() -> None:
    command = ["kubectl", "kustomize", str(DEPLOY / "kubernetes")]
    built = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    items = list(yaml.safe_load_all(built.stdout))
    assert len(items) == len(manifests()) + 1
    assert {item["metadata"].get("namespace", "hone") for item in items} == {"hone"}
