"""What tests do to any Kubernetes through its API: the CRD, namespaces, fake nodes, service accounts, waiting."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import urllib3
import yaml
from patience import patient

from servers.kubernetes_api import KubernetesApi, Object, Refused
from servers.process import Process
from servers.tools import tool

CRD: Final = Path(__file__).parents[3] / "charts" / "dapo" / "files" / "dapojobs.yaml"
_KWOK_FLAGS: Final = [
    f"--config={Path(__file__).with_name('kwok_stages.yaml')}",
    "--manage-nodes-with-label-selector=type=kwok",
    # Without leases the nodes would be lost after 40 seconds.
    "--node-lease-duration-seconds=40",
]
# Unknown as yet, storage is being initialised, overloaded at its start.
_NOT_YET: Final = {404, 429, 500, 503}


def kubernetes_tool(name: str) -> Path:
    """A program of Kubernetes: from KUBEBUILDER_ASSETS where that has it, else from the project's tools."""
    given = Path(os.environ.get("KUBEBUILDER_ASSETS", "/nowhere")) / name
    return given if given.is_file() else tool(name)


class Kubernetes:
    """A Kubernetes that answers at `api`; programs reach it with `kubeconfig`."""

    kubeconfig: Path
    api: KubernetesApi
    folder: Path
    kwok: Process | None = None

    def install_crd(self) -> None:
        """Apply the chart's CRD and wait until DAPOJobs can be created."""
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        crd = yaml.safe_load(CRD.read_text())
        self.api.apply(f"{path}/{crd['metadata']['name']}", crd)
        self.wait_until(lambda: self._serves("/apis/dapo.io/v1alpha1/dapojobs"), "DAPOJobs are served")

    def namespace(self, name: str, labels: dict[str, str] | None = None) -> str:
        """Make a namespace in which pods can be created, and answer its name."""
        self.api.apply(f"/api/v1/namespaces/{name}", _meta("Namespace", name, labels))
        # Pods are refused until the controller manager has made this one.
        path = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        self.wait_until(lambda: self._serves(path), f"namespace {name} has its service account")
        return name

    def add_nodes(self, count: int, *, prefix: str = "node", gpus: int = 8, ready_seconds: float = 60) -> list[str]:
        """Fake nodes, each with 256 processors, 2 TiB, 1,000 pods and so many GPUs; returns when they can take pods."""
        if self.kwok is None:
            flags = [f"--kubeconfig={self.kubeconfig}", *_KWOK_FLAGS]
            self.kwok = Process("kwok", [str(kubernetes_tool("kwok")), *flags], self.folder / "kwok.log")
            self.kwok.start()
        names = [f"{prefix}-{index}" for index in range(count)]
        for name in names:
            self.api.create("/api/v1/nodes", _node(name, gpus))
        self.kwok.wait_until(lambda: self._usable(names), ready_seconds)
        return names

    def wait_until(self, holds: Callable[[], object], what: str, seconds: float = 60) -> None:
        """Poll until it holds; TimeoutError that says what did not come about."""
        deadline = time.monotonic() + patient(seconds)
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {seconds:g} s: {what}")
            time.sleep(0.05)

    def answers(self) -> bool:
        """Whether the API server says that it is ready."""
        try:
            return self.api.text("/readyz") == "ok"
        except (Refused, urllib3.exceptions.HTTPError):
            return False

    def _serves(self, path: str) -> bool:
        try:
            self.api.get(path)
        except Refused as refused:
            if refused.code in _NOT_YET:
                return False
            raise
        return True

    def _usable(self, names: list[str]) -> bool:
        nodes = self.api.items("/api/v1/nodes")
        return {node["metadata"]["name"] for node in nodes if _takes_pods(node)}.issuperset(names)


def _node(name: str, gpus: int) -> Object:
    size = {"cpu": "256", "memory": "2Ti", "pods": "1000", "ephemeral-storage": "10Ti", "nvidia.com/gpu": str(gpus)}
    node = _meta("Node", name, {"type": "kwok", "kubernetes.io/hostname": name})
    return node | {"status": {"capacity": size, "allocatable": size}}


def _takes_pods(node: Object) -> bool:
    ready = any(
        found["type"] == "Ready" and found["status"] == "True" for found in node["status"].get("conditions", [])
    )
    return ready and not node["spec"].get("taints")


def _meta(kind: str, name: str, labels: dict[str, str] | None) -> Object:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "labels": labels or {}}}
