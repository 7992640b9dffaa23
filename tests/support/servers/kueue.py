"""Kueue's real controller, as a process beside the control plane of the tests, with CRDs from its module.

Its admission webhooks are not registered: the API server of the tests has no Services to reach them by. They fill in
defaults and refuse mistakes; what is admitted, preempted and evicted is decided by the controller.
"""

import base64
import contextlib
import warnings
from pathlib import Path
from typing import Any, Final

import urllib3
import yaml
from patience import patient

from servers.kubernetes import Cluster
from servers.kubernetes_api import Object, Refused
from servers.ports import free_port
from servers.process import Process
from servers.tools import tool

GROUP: Final = "/apis/kueue.x-k8s.io/v1beta2"
_NAMESPACE: Final = "kueue-system"
_SECRET: Final = f"/api/v1/namespaces/{_NAMESPACE}/secrets/kueue-webhook-server-cert"
_CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
# Kinds into which Kueue writes the certificate of its conversion webhook.
_CONVERTED: Final = ("localqueues", "clusterqueues", "workloads", "cohorts", "multikueueclusters")
_START_SECONDS: Final = 60


class KueueController:
    """One Kueue, with `groups` of its configuration; stopped and started again, it finds everything as it left it."""

    def __init__(self, kubernetes: Cluster, folder: Path, **groups: Any) -> None:
        self._kubernetes, self._folder, self._groups = kubernetes, folder, groups
        self._certificates = folder / "certificates"
        self._certificates.mkdir(parents=True)
        self._health = f"127.0.0.1:{free_port()}"
        self._metrics = f"127.0.0.1:{free_port()}"
        self._webhook_port = free_port()
        self._file = folder / "configuration.yaml"
        self._file.write_text(yaml.safe_dump(self._configuration()))
        command = [str(tool("kueue")), f"--config={self._file}", "--zap-log-level=2"]
        environment = {"KUBECONFIG": str(kubernetes.kubeconfig)}
        self.process = Process("kueue", command, folder / "kueue.log", env=environment)

    def install(self) -> None:
        """Its CRDs, and the Secret that it fills with a certificate."""
        api = self._kubernetes.api
        names = []
        for path in sorted((tool("kueue").parent / "crds").glob("*.yaml")):
            crd = yaml.safe_load(path.read_text())
            names.append(crd["metadata"]["name"])
            if names[-1].partition(".")[0] in _CONVERTED:
                webhook = {"clientConfig": {"url": "https://127.0.0.1:1/convert"}, "conversionReviewVersions": ["v1"]}
                crd["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
            api.create(_CRDS, crd)
        self._kubernetes.namespace(_NAMESPACE)
        api.create(_SECRET.rpartition("/")[0], {"metadata": {"name": _SECRET.rpartition("/")[2]}})
        self._kubernetes.wait_until(lambda: all(self._serves(name) for name in names), "Kueue's kinds are served")

    def start(self) -> "KueueController":
        """Start it, and wait until it is ready."""
        self.process.start()
        self.process.wait_until(self._ready, _START_SECONDS)
        return self

    def restart(self, **groups: Any) -> None:
        """Stop it, and start it with more groups of its configuration."""
        self.process.kill()
        self._file.write_text(yaml.safe_dump(self._configuration() | groups))
        self.start()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels."""
        token = {"Authorization": f"Bearer {self._kubernetes.credentials.admin_token}"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", urllib3.exceptions.InsecureRequestWarning)  # it signs its own certificate
            pool = urllib3.PoolManager(cert_reqs="CERT_NONE")
            answer = pool.request("GET", f"https://{self._metrics}/metrics", headers=token, timeout=patient(10))
        assert answer.status == 200, answer.data
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        lines = [line for line in answer.data.decode().splitlines() if line.startswith(f"{name}{{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines if all(each in line for each in wanted))

    def _configuration(self) -> Object:
        return {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": _NAMESPACE,
            "health": {"healthProbeBindAddress": self._health},
            "metrics": {"bindAddress": self._metrics},
            "webhook": {"host": "127.0.0.1", "port": self._webhook_port, "certDir": str(self._certificates)},
            "leaderElection": {"leaderElect": False},
            # It would be an aggregated API server, with a certificate in the root folder.
            "featureGates": {"VisibilityOnDemand": False},
            "internalCertManagement": {
                "enable": True,
                "webhookServiceName": "kueue-webhook-service",
                "webhookSecretName": _SECRET.rpartition("/")[2],
            },
            "integrations": {"frameworks": ["batch/job"], "externalFrameworks": ["DAPOJob.v1alpha1.dapo.io"]},
        } | self._groups

    def _serves(self, name: str) -> bool:
        plural = name.partition(".")[0]
        try:
            self._kubernetes.api.get(f"{GROUP}/{plural}")
        except Refused:
            return False
        return True

    def _ready(self) -> bool:
        self._mount_certificates()
        with contextlib.suppress(urllib3.exceptions.HTTPError):
            answer = urllib3.request("GET", f"http://{self._health}/readyz", retries=False, timeout=patient(1))
            return answer.status == 200
        return False

    def _mount_certificates(self) -> None:
        """As a kubelet does with the Secret: Kueue never sees a part of a file."""
        for name, value in sorted((self._kubernetes.api.get(_SECRET).get("data") or {}).items()):
            content, part = base64.b64decode(value), self._certificates / f".{name}"
            part.write_bytes(content)
            part.rename(self._certificates / name)


def flavor(name: str, labels: dict[str, str], tolerations: list[Object], topology: str | None = None) -> Object:
    """A ResourceFlavor: nodes with these labels, in a topology."""
    spec: Object = {"nodeLabels": labels, "tolerations": tolerations}
    return _object("ResourceFlavor", name, spec | ({"topologyName": topology} if topology else {}))


def topology(name: str, levels: list[str]) -> Object:
    """A Topology of domains by these labels of nodes, the widest first."""
    return _object("Topology", name, {"levels": [{"nodeLabel": level} for level in levels]})


def local_queue(name: str) -> Object:
    """The LocalQueue of the ClusterQueue with this name."""
    return _object("LocalQueue", name, {"clusterQueue": name})


def cluster_queue(name: str, cohort: str, flavor: str, gpus: int) -> Object:
    """A ClusterQueue of a cohort, which takes back what it has lent, with so many GPUs of its own and enough of the
    rest."""
    quotas = {"cpu": "1000", "memory": "1000Gi", "nvidia.com/gpu": str(gpus)}
    resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quotas.items()]
    group = {"coveredResources": list(quotas), "flavors": [{"name": flavor, "resources": resources}]}
    spec = {
        "cohortName": cohort,
        "namespaceSelector": {},
        "resourceGroups": [group],
        "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
    }
    return _object("ClusterQueue", name, spec)


def worker_clusters(check: str, clusters: dict[str, Cluster]) -> list[tuple[str, Object]]:
    """An AdmissionCheck of MultiKueue for these clusters, and what it needs: paths and objects."""
    made = [(f"/api/v1/namespaces/{_NAMESPACE}/secrets", _kubeconfig(name, each)) for name, each in clusters.items()]
    for name in clusters:
        source = {"kubeConfig": {"location": name, "locationType": "Secret"}}
        made.append((f"{GROUP}/multikueueclusters", _object("MultiKueueCluster", name, {"clusterSource": source})))
    config = _object("MultiKueueConfig", check, {"clusters": list(clusters)})
    made.append((f"{GROUP}/multikueueconfigs", config))
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": check}
    spec = {"controllerName": "kueue.x-k8s.io/multikueue", "parameters": parameters}
    return [*made, (f"{GROUP}/admissionchecks", _object("AdmissionCheck", check, spec))]


def _kubeconfig(name: str, cluster: Cluster) -> Object:
    """A Secret with the cluster's kubeconfig; Kueue takes none that names other files."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    for each in config["clusters"]:
        authority = Path(each["cluster"].pop("certificate-authority")).read_bytes()
        each["cluster"]["certificate-authority-data"] = base64.b64encode(authority).decode()
    return {"metadata": {"name": name}, "stringData": {"kubeconfig": yaml.safe_dump(config)}}


def _object(kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec}
