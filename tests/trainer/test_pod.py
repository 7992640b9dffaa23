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
from dapo_trainer.verl_adapter import preload
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
        (
            ON_CPUS | {"rollout": {"replicas": 4, "minReplicas": 2, "gpusPerPod": 0}},
            {"rollout": 1},
            {"dapo_trainer": 1, "dapo_rollout": 2},
        ),
        (
            ON_CPUS | {"rollout": {"replicas": 4, "minReplicas": 0, "gpusPerPod": 0}},
            {"rollout": 1},
            {"dapo_trainer": 1, "dapo_rollout": 1},
        ),
    ],
    ids=[
        "pods on processors",
        "pods with eight GPUs",
        "no rollout pods when colocated",
        "the rollouts that are required",
        "a first step needs an engine",
    ],
)
def test_what_the_first_step_waits_for(
    topology: dict[str, Any], slots: dict[Role, int], resources: dict[str, int]
) -> None:
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
    started = arguments(ray_start(RayNode("head", 0, "10.0.0.7", 4 << 30, "head"), "unused:6379"))
    assert started["node-ip-address"] == "10.0.0.7"
    assert (started["head"], started["port"], started["num-gpus"]) == ("", "6379", "0")
    assert "resources" not in started and "address" not in started
    # No part of Ray that nobody uses: no dashboard, no autoscaler.
    assert started["include-dashboard"] == "false" and "no-monitor" in started


@pytest.mark.parametrize("role", ["trainer", "rollout"])
def test_a_worker_joins_under_its_role(role: Role) -> None:
    started = arguments(ray_start(RayNode(role, 8, "10.0.0.8", 16 << 30, f"a-{role}-1-0"), "head.svc:6379"))
    assert started["address"] == "head.svc:6379"
    assert json.loads(started["resources"]) == {f"dapo_{role}": 8}
    assert started["num-gpus"] == "8"
    assert started["labels"] == f"dapo-pod=a-{role}-1-0", "by which the driver knows whose engines leave"


@pytest.mark.parametrize("slots", [1, 8, 10, 16, 64])
def test_s5_a_pod_of_many_gpus_offers_verl_what_it_asks_for_each(slots: int) -> None:
    started = arguments(ray_start(RayNode("trainer", slots, "10.0.0.8", 16 << 30, "a"), "head.svc:6379"))
    assert int(started["num-cpus"]) >= max(32, 3 * slots)


@pytest.mark.parametrize(
    ("shm", "expected"), [(16 << 30, 8 << 30), (64 << 20, MIN_OBJECT_STORE_BYTES)], ids=["half of it", "too small"]
)
def test_objects_take_a_share_of_the_shared_memory(shm: int, expected: int) -> None:
    started = arguments(ray_start(RayNode("trainer", 1, "10.0.0.8", shm, "a"), "head:6379"))
    assert int(started["object-store-memory"]) == expected


@pytest.mark.parametrize("name", ["a" * 63, "a" * 70 + "-rollout-1-0-2", "x" * 40 + "-" + "b" * 62])
def test_a_pods_label_is_one_that_ray_takes(name: str) -> None:
    label_utils = pytest.importorskip("ray._private.label_utils")
    label = arguments(ray_start(RayNode("rollout", 1, "10.0.0.8", 1 << 30, name), "head:6379"))["labels"]
    label_utils.parse_node_labels_string(label)
    assert name.endswith(label.removeprefix("dapo-pod="))


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
        pod_roles.become_driver(
            RayNode("head", 0, "10.0.0.7", 1 << 30, "head"), pod, job(topology=topology, batch=BATCH).spec
        )
    assert became.value.args == ([device, ("/a/launcher", "--num-cpus=32")], "10.0.0.7:6379")


@pytest.mark.parametrize(
    ("topology", "role", "modules"),
    [
        (ON_CPUS, "trainer", preload.RANK_MODULES),
        (ON_CPUS, "rollout", preload.ENGINE_MODULES),
        ({"trainer": {"replicas": 2, "gpusPerPod": 0}}, "trainer", preload.MODULES),
    ],
    ids=["ranks", "engines", "both in one pod"],
)
def test_a_pod_imports_what_its_processes_need(
    topology: dict[str, Any], role: Role, modules: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Imported(Exception):
        pass

    def fork(*asked: object) -> None:
        raise Imported(*asked)

    monkeypatch.setattr(pod_roles, "_Asked", object)  # leaves the handler of SIGTERM alone
    monkeypatch.setattr(pod_roles.preload, "fork_from_here", fork)
    pod = PodEnvironment(tmp_path / "job", "head:6379", tmp_path / "ready", "pod", "10.0.0.7", 1 << 30)
    with pytest.raises(Imported) as imported:
        pod_roles.serve(RayNode(role, 1, "10.0.0.7", 1 << 30, "pod"), pod, job(topology=topology, batch=BATCH).spec)
    assert imported.value.args == ("cpu", modules)
