"""A pod as a node of its job's Ray cluster."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from builders import job

from dapo_core.naming import Role
from dapo_trainer import main
from dapo_trainer.pod import pod_roles
from dapo_trainer.pod.node import MIN_OBJECT_STORE_BYTES, PodEnvironment, RayNode, device, ray_start
from dapo_trainer.process.fork_child import LAUNCHER
from dapo_trainer.verl_config.placement import node_resources

SEPARATED: dict[str, Any] = {"mode": "Separated"}
ON_CPUS = SEPARATED | {
    "trainer": {"replicas": 1, "gpusPerPod": 0},
    "rollout": {"replicas": 2, "gpusPerPod": 0},
}
ON_GPUS = SEPARATED | {
    "trainer": {"replicas": 2, "gpusPerPod": 8},
    "rollout": {"replicas": 3, "gpusPerPod": 8, "tensorParallel": 2},
}
# Batches that both topologies divide.
BATCH = {"prompts": 512, "responsesPerPrompt": 16, "miniBatchResponses": 512}


@pytest.mark.parametrize(
    ("topology", "slots", "resources"),
    [
        (ON_CPUS, {"head": 0, "trainer": 1, "rollout": 1}, {"dapo_trainer": 1, "dapo_rollout": 2}),
        (ON_GPUS, {"head": 0, "trainer": 8, "rollout": 8}, {"dapo_trainer": 16, "dapo_rollout": 24}),
        (ON_GPUS | {"mode": "Colocated"}, {"head": 0, "trainer": 8}, {"dapo_trainer": 16}),
    ],
    ids=["pods on processors", "pods with eight GPUs", "no rollout pods when colocated"],
)
def test_what_pods_bring(topology: dict[str, Any], slots: dict[Role, int], resources: dict[str, int]) -> None:
    spec = job(topology=topology, batch=BATCH).spec
    assert {role: spec.topology.layout.slots_per_pod(role) for role in slots} == slots
    assert node_resources(spec) == resources


@pytest.mark.parametrize(
    ("topology", "expected"), [(ON_CPUS, "cpu"), (ON_GPUS, "cuda")], ids=["processors", "GPUs, which a head lacks"]
)
def test_a_head_knows_what_the_job_computes_on(topology: dict[str, Any], expected: str) -> None:
    assert device(job(topology=topology, batch=BATCH).spec) == expected


def arguments(command: list[str]) -> dict[str, str]:
    return dict(part.removeprefix("--").partition("=")[::2] for part in command if part.startswith("--"))


def test_the_head_listens_and_computes_nothing() -> None:
    started = arguments(ray_start(RayNode("head", 0, "10.0.0.7", 4 << 30), "unused:6379"))
    assert started["node-ip-address"] == "10.0.0.7"
    assert (started["head"], started["port"], started["num-gpus"]) == ("", "6379", "0")
    assert "resources" not in started and "address" not in started
    # No part of Ray that nobody uses: no dashboard, no autoscaler.
    assert started["include-dashboard"] == "false" and "no-monitor" in started


@pytest.mark.parametrize("role", ["trainer", "rollout"])
def test_a_worker_joins_under_its_role(role: Role) -> None:
    started = arguments(ray_start(RayNode(role, 8, "10.0.0.8", 16 << 30), "head.svc:6379"))
    assert started["address"] == "head.svc:6379"
    assert json.loads(started["resources"]) == {f"dapo_{role}": 8}
    assert started["num-gpus"] == "8"


@pytest.mark.parametrize("slots", [1, 8, 10, 16, 64])
def test_s5_a_pod_of_many_gpus_offers_verl_what_it_asks_for_each(slots: int) -> None:
    started = arguments(ray_start(RayNode("trainer", slots, "10.0.0.8", 16 << 30), "head.svc:6379"))
    assert int(started["num-cpus"]) >= max(32, 3 * slots)


@pytest.mark.parametrize(
    ("shm", "expected"), [(16 << 30, 8 << 30), (64 << 20, MIN_OBJECT_STORE_BYTES)], ids=["half of it", "too small"]
)
def test_objects_take_a_share_of_the_shared_memory(shm: int, expected: int) -> None:
    started = arguments(ray_start(RayNode("trainer", 1, "10.0.0.8", shm), "head:6379"))
    assert int(started["object-store-memory"]) == expected


class BecameDriver(Exception):
    """Raised in place of training."""


@pytest.mark.parametrize(("topology", "device"), [(ON_CPUS, "cpu"), (ON_GPUS, "cuda")], ids=["processors", "GPUs"])
def test_a_head_imports_then_starts_ray_then_becomes_the_driver(
    topology: dict[str, Any], device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[object] = []

    def fork(on: str) -> None:
        steps.append(on)
        monkeypatch.setenv(LAUNCHER, "/a/launcher")

    def start(command: list[str]) -> "subprocess.CompletedProcess[bytes]":
        assert not pod.ready.exists()
        steps.append((command[0], command[-4]))
        return subprocess.CompletedProcess(command, 0)

    def drive() -> None:
        assert pod.ready.exists()
        raise BecameDriver(steps, pod_roles.os.environ["RAY_ADDRESS"])

    monkeypatch.setattr(pod_roles.preload, "fork_from_here", fork)
    monkeypatch.setattr(pod_roles.subprocess, "run", start)
    monkeypatch.setattr(main, "main", drive)
    monkeypatch.setenv("RAY_ADDRESS", "")
    pod = PodEnvironment(tmp_path / "job", "head:6379", tmp_path / "ready", "head", "10.0.0.7", 1 << 30)
    with pytest.raises(BecameDriver) as became:
        pod_roles.become_driver(RayNode("head", 0, "10.0.0.7", 1 << 30), pod, job(topology=topology, batch=BATCH).spec)
    assert became.value.args == ([device, ("/a/launcher", "--num-cpus=32")], "10.0.0.7:6379")
