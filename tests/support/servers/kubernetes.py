"""A real Kubernetes without machines: etcd, API server, controller manager and scheduler on the loopback device.

Nodes are fake: kwok reports them ready and their pods running. What a container would do, a test does by writing the
pod's status (`servers.kubernetes_pods`).
"""

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from servers.kubernetes_api import KubernetesApi
from servers.kubernetes_credentials import Credentials
from servers.kubernetes_objects import Kubernetes, kubernetes_tool
from servers.ports import free_port
from servers.process import Process

_SERVICES: Final = "10.96.0.0/16"
# What DAPOJobs and their pods meet; the others only cost start-up time.
CONTROLLERS: Final = (
    "disruption-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "pod-garbage-collector-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "taint-eviction-controller",
)
_READY_SECONDS: Final = 120


class Cluster(Kubernetes):
    """One control plane in a temporary folder. Started again, it keeps its address, its state and its credentials."""

    def __init__(
        self,
        folder: Path | None = None,
        apiserver_flags: Iterable[str] = (),
        controllers: Iterable[str] = CONTROLLERS,
    ) -> None:
        self._controllers = tuple(controllers)
        self._own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="dapo-cluster-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.credentials = Credentials.make(self.folder / "credentials")
        self.url = f"https://127.0.0.1:{free_port()}"
        self.kubeconfig = self.credentials.write_kubeconfig(self.folder / "kubeconfig", self.url)
        self.api = KubernetesApi(self.url, self.credentials.admin_token, self.credentials.ca)
        self.etcd_url = f"http://127.0.0.1:{free_port()}"
        self.etcd = self._process("etcd", _etcd_flags(self.folder / "etcd", self.etcd_url))
        self.apiserver = self._process("kube-apiserver", [*self._apiserver_flags(), *apiserver_flags])
        self.controllers = self._process("kube-controller-manager", self._controller_flags())
        self.scheduler = self._process("kube-scheduler", self._scheduler_flags())

    def start(self, nodes: int = 0) -> "Cluster":
        """Start everything, install the CRD and, with nodes, kwok; seconds on a quiet machine."""
        self.etcd.start()
        self.apiserver.start()
        self.apiserver.wait_until(self.answers, _READY_SECONDS)
        # They would wait for the API server, but with pauses longer than its start takes.
        self.controllers.start()
        self.scheduler.start()
        self.install_crd()
        if nodes:
            self.add_nodes(nodes)
        return self

    def stop(self) -> None:
        """End every process and remove the folder, if it was made here."""
        for process in (self.kwok, self.scheduler, self.controllers, self.apiserver, self.etcd):
            if process:
                process.kill()  # nothing of this state is needed again
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill_apiserver(self) -> None:
        """SIGKILL: connections are reset, new ones refused, until `restart`."""
        self.apiserver.kill()

    def pause(self) -> None:
        """SIGSTOP of the API server: connections stay and nothing answers, until `resume` or `restart`."""
        self.apiserver.pause()

    def resume(self) -> None:
        """Go on after `pause`."""
        self.apiserver.resume()

    def restart(self) -> None:
        """Stop the API server in whatever state it is, start it again, and wait until it answers."""
        self.apiserver.kill()
        self.apiserver.start()
        self.apiserver.wait_until(self.answers, _READY_SECONDS)

    def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """A kubeconfig with which a program is this service account, which must exist, for an hour."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        token = self.api.create(path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
        return self.credentials.write_kubeconfig(self.folder / f"{namespace}-{name}", self.url, token)

    def _process(self, name: str, flags: list[str]) -> Process:
        return Process(name, [str(kubernetes_tool(name)), *flags], self.folder / f"{name}.log")

    def _apiserver_flags(self) -> list[str]:
        port = self.url.rpartition(":")[2]
        keys = self.credentials
        return [
            f"--etcd-servers={self.etcd_url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={port}",
            f"--service-cluster-ip-range={_SERVICES}",
            f"--tls-cert-file={keys.server_certificate}",
            f"--tls-private-key-file={keys.server_key}",
            f"--client-ca-file={keys.ca}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={keys.service_account_key}",
            f"--service-account-signing-key-file={keys.service_account_key}",
            f"--token-auth-file={keys.tokens}",
            "--authorization-mode=Node,RBAC",
            "--feature-gates=ImageVolume=true",  # as from Kubernetes 1.35 on
            # No address of the loopback device may be an endpoint, and nobody looks for one here.
            "--endpoint-reconciler-type=none",
        ]

    def _controller_flags(self) -> list[str]:
        keys = self.credentials
        return [
            f"--kubeconfig={self.kubeconfig}",
            "--leader-elect=false",
            f"--controllers={','.join(self._controllers)}",
            # Its own limit of 20 requests a second would be most of its start-up.
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            f"--service-account-private-key-file={keys.service_account_key}",
            f"--root-ca-file={keys.ca}",
            f"--cluster-signing-cert-file={keys.ca}",
            f"--cluster-signing-key-file={keys.ca_key}",
            f"--secure-port={free_port()}",
            "--bind-address=127.0.0.1",
        ]

    def _scheduler_flags(self) -> list[str]:
        serving = [f"--secure-port={free_port()}", "--bind-address=127.0.0.1"]
        limits = ["--kube-api-qps=500", "--kube-api-burst=1000"]  # its own 50 a second are a pod every 40 ms
        return [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", *serving, *limits]


def _etcd_flags(data: Path, url: str) -> list[str]:
    peer = f"http://127.0.0.1:{free_port()}"
    clients = [f"--listen-client-urls={url}", f"--advertise-client-urls={url}"]
    peers = [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}"]
    # Without fsync: what a test writes need not outlive the machine.
    return [f"--data-dir={data}", *clients, *peers, "--unsafe-no-fsync", "--log-level=warn"]
