"""The Kubernetes of a kubeconfig instead of one of our own."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Self

from servers.kubernetes_api import KubernetesApi
from servers.kubernetes_objects import Kubernetes, kubernetes_tool
from servers.ports import free_port
from servers.process import Process


class ExistingCluster(Kubernetes):
    """Reached through `kubectl proxy`, which knows every way to log in; `stop` takes away the nodes that were added."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.folder = Path(tempfile.mkdtemp(prefix="dapo-cluster-"))
        port = free_port()
        command = [str(kubernetes_tool("kubectl")), f"--kubeconfig={kubeconfig}", "proxy", f"--port={port}"]
        self._proxy = Process("kubectl", command, self.folder / "kubectl.log")
        self.api = KubernetesApi(f"http://127.0.0.1:{port}")
        self._added: list[str] = []

    @classmethod
    def of_the_user(cls) -> Self | None:
        """The cluster of KUBECONFIG where USE_EXISTING_CLUSTER is true, else None.

        The second variable is there because these tests install a CRD and add nodes: a shell that merely has a
        KUBECONFIG must not lose its production cluster to `make test`. Both names are controller-runtime's.
        """
        if os.environ.get("USE_EXISTING_CLUSTER", "").lower() != "true":
            return None
        return cls(Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config"))

    def start(self, nodes: int = 0) -> Self:
        """Connect, install the CRD and add fake nodes."""
        self._proxy.start()
        self._proxy.wait_until(self.answers, 60)
        self.install_crd()
        if nodes:
            self._added = self.add_nodes(nodes, prefix="dapo-tests")
        return self

    def stop(self) -> None:
        """Remove the added nodes and disconnect."""
        for name in self._added:
            self.api.delete(f"/api/v1/nodes/{name}")
        for process in (self.kwok, self._proxy):
            if process:
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
