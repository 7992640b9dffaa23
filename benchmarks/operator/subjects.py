"""The operators that can be measured: ours, and KubeRay's if its binary and CRDs are given."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

Object = dict[str, Any]
# Of every namespace, where jobs are queued.
QUEUE: Final = "bench"


@dataclass(frozen=True)
class Subject:
    """One operator. `owner_label` is the label of a pod that names its job, `pods` how many each job has, `looks` where
    it counts its reconciles: a port of this machine and the metric's name."""

    name: str
    collection: str
    owner_label: str
    command: list[str]
    env: dict[str, str]
    crds: list[Object]
    make: Callable[[str], Object]
    pods: int
    ready: Callable[[Object], bool]
    lease: tuple[str, str]
    looks: tuple[int, str]

    def path(self, namespace: str | None, name: str = "") -> str:
        """URL path of the jobs of a namespace, or of all."""
        group, plural = self.collection.rsplit("/", 1)
        middle = f"/namespaces/{namespace}" if namespace else ""
        return f"{group}{middle}/{plural}" + (f"/{name}" if name else "")


def ours(telemetry_port: int, rate: float, pods: int, queued: bool) -> Subject:
    """The operator of this repository, as `python -m dapo_operator`."""
    return Subject(
        name="dapo",
        collection="/apis/dapo.io/v1alpha1/dapojobs",
        owner_label="dapo.io/job",
        command=[sys.executable, "-m", "dapo_operator"],
        env={
            "DAPO_TRAINER_IMAGE": "trainer:bench",
            "DAPO_TELEMETRY_PORT": str(telemetry_port),
            "DAPO_LEASE_NAMESPACE": "kube-system",
            "DAPO_IDENTITY": "the-pod",  # as in the chart: a container started again in its pod holds its lease still
            "DAPO_REQUESTS_PER_SECOND": str(rate),
            "DAPO_REQUESTS_BURST": str(int(2 * rate)),
        },
        crds=[],
        make=partial(_dapo_job, pods=pods, queued=queued),
        pods=pods,
        ready=lambda job: job.get("status", {}).get("phase") == "Training",
        lease=("kube-system", "dapo-operator"),
        looks=(telemetry_port, "dapo_operator_reconciles_total"),
    )


def kuberay(metrics_port: int, binary: Path, crds: Path, options: list[str], pods: int) -> Subject:
    """KubeRay's operator with RayClusters of the same number of pods."""
    election = ["--enable-leader-election=true", "--leader-election-namespace=kube-system"]
    ports = [f"--metrics-addr=127.0.0.1:{metrics_port}", "--health-probe-bind-address=127.0.0.1:0"]
    return Subject(
        name="kuberay",
        collection="/apis/ray.io/v1/rayclusters",
        owner_label="ray.io/cluster",
        command=[str(binary), *election, *ports, *options],
        env={"POD_NAMESPACE": "kube-system", "ENABLE_ZERO_DOWNTIME": "false"},
        crds=[yaml.safe_load(path.read_text()) for path in sorted(crds.glob("*.yaml"))],
        make=partial(_ray_cluster, pods=pods),
        pods=pods,
        ready=lambda cluster: cluster.get("status", {}).get("state") == "ready",
        lease=("kube-system", "ray-operator-leader"),
        looks=(metrics_port, "controller_runtime_reconcile_total"),
    )


def _dapo_job(name: str, pods: int, queued: bool) -> Object:
    trainers = (pods - 1) // 2
    small = {"resources": {"cpu": "1", "memory": "1Gi", "shm": "128Mi"}}
    head = {"resources": {"cpu": "1", "memory": "1Gi", "shm": "128Mi"}}
    topology = {
        "mode": "Separated",
        "head": head,
        "trainer": {"replicas": trainers, "gpusPerPod": 1} | small,
        "rollout": {"replicas": pods - 1 - trainers, "gpusPerPod": 1} | small,
    }
    return {
        "apiVersion": "dapo.io/v1alpha1",
        "kind": "DAPOJob",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": "hf://a/b"},
            "data": {"train": [{"source": "s3://bucket/train.parquet"}]},
            "topology": topology,
        }
        | ({"runPolicy": {"gang": {"scheduler": "kueue", "queue": QUEUE}}} if queued else {}),
    }


def _ray_cluster(name: str, pods: int) -> Object:
    def template(role: str) -> Object:
        requests = {"cpu": "1", "memory": "1Gi"}
        container = {"name": role, "image": "ray:bench", "resources": {"requests": requests, "limits": requests}}
        return {"spec": {"containers": [container]}}

    count = dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), pods - 1)
    workers = {"groupName": "workers", **count, "rayStartParams": {}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name},
        "spec": {
            "rayVersion": "2.50.0",
            "headGroupSpec": {"rayStartParams": {}, "template": template("head")},
            "workerGroupSpecs": [workers | {"template": template("worker")}],
        },
    }


def environment(subject: Subject, kubeconfig: Path) -> dict[str, str]:
    """Environment of the operator's process."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("DAPO_")}
    return {**kept, "KUBECONFIG": str(kubeconfig), **subject.env}
