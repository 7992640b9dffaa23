"""A DAPOJob on a real API server becomes pods, and goes without a trace."""

from copy import deepcopy
from pathlib import Path

from builders import MINIMAL
from operator_process import SHARED
from servers.kubernetes_objects import Kubernetes
from servers.kubernetes_pods import pods_of

JOBS = f"/apis/dapo.io/v1alpha1/namespaces/{SHARED}/dapojobs"


def test_pods_of_a_job(kubernetes: Kubernetes, shared: Path) -> None:
    job = deepcopy(MINIMAL)
    job["metadata"]["name"] = "light"
    job["spec"]["topology"] = {"mode": "Separated", "rollout": {"replicas": 2}}
    kubernetes.api.create(JOBS, job)
    try:
        kubernetes.wait_until(
            lambda: kubernetes.api.get(f"{JOBS}/light").get("status", {}).get("phase") == "Training", "it trains", 30
        )
    finally:
        print(shared.read_text())
    print(kubernetes.api.get(f"{JOBS}/light")["status"])
    assert len(pods_of(kubernetes.api, SHARED, job="light")) == 4
    kubernetes.api.delete(f"{JOBS}/light")
    kubernetes.wait_until(lambda: not pods_of(kubernetes.api, SHARED, job="light"), "no pods", 30)
    print(shared.read_text())
