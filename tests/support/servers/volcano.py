"""Volcano's real scheduler and controllers, as processes beside the control plane of the tests, with CRDs from its
module. Its admission webhooks, which fill in defaults and refuse mistakes, are not registered."""

import contextlib
from functools import partial
from pathlib import Path
from typing import Final

import urllib3
import yaml
from patience import patient

from servers.kubernetes_api import Object, Refused
from servers.kubernetes_objects import Kubernetes
from servers.ports import free_port
from servers.process import Process
from servers.tools import tool

GROUP: Final = "/apis/scheduling.volcano.sh/v1beta1"
_CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_START_SECONDS: Final = 60
_PERIOD: Final = "200ms"  # of its scheduling cycles
# The actions and plugins of Volcano's own installation, and `reclaim` between queues.
_CONFIGURATION: Final = """\
actions: "enqueue, allocate, reclaim, backfill"
tiers:
- plugins:
  - {name: priority}
  - {name: gang, enablePreemptable: false}
  - {name: conformance}
- plugins:
  - {name: overcommit}
  - {name: drf, enablePreemptable: false}
  - {name: predicates}
  - {name: proportion}
  - {name: nodeorder}
  - {name: binpack}
"""


class Volcano:
    """A scheduler and a controller manager."""

    def __init__(self, kubernetes: Kubernetes, folder: Path) -> None:
        self._kubernetes = kubernetes
        configuration = folder / "scheduler.yaml"
        configuration.write_text(_CONFIGURATION)
        self._ports = {"vc-scheduler": free_port(), "vc-controller-manager": free_port()}
        scheduling = [f"--scheduler-conf={configuration}", f"--schedule-period={_PERIOD}"]
        scheduling += ["--cache-dumper=false", f"--plugins-dir={folder}"]
        self.scheduler = self._process("vc-scheduler", scheduling, folder)
        self.controllers = self._process(
            "vc-controller-manager", ["--controllers=queue-controller,pg-controller"], folder
        )

    def install(self) -> None:
        """Its CRDs."""
        names = []
        for path in sorted((tool("vc-scheduler").parent / "crds").glob("*.yaml")):
            crd = yaml.safe_load(path.read_text())
            names.append(crd["metadata"]["name"])
            self._kubernetes.api.create(_CRDS, crd)
        self._kubernetes.wait_until(lambda: all(self._serves(name) for name in names), "Volcano's kinds are served")

    def start(self) -> "Volcano":
        """Start both, and wait until they are ready."""
        for process in (self.scheduler, self.controllers):
            process.start()
        for process in (self.scheduler, self.controllers):
            process.wait_until(partial(_is_well, self._ports[process.name]), _START_SECONDS)
        return self

    def kill(self) -> None:
        """End both at once."""
        self.scheduler.kill()
        self.controllers.kill()

    def _process(self, name: str, flags: list[str], folder: Path) -> Process:
        health = ["--enable-healthz=true", f"--healthz-address=127.0.0.1:{self._ports[name]}"]
        common = [f"--kubeconfig={self._kubernetes.kubeconfig}", "--leader-elect=false", *health]
        return Process(name, [str(tool(name)), *common, *flags], folder / f"{name}.log")

    def _serves(self, name: str) -> bool:
        path = f"{_CRDS}/{name}"
        try:
            conditions = self._kubernetes.api.get(path).get("status", {}).get("conditions") or ()
        except Refused:
            return False
        return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def _is_well(port: int) -> bool:
    with contextlib.suppress(urllib3.exceptions.HTTPError):
        url = f"http://127.0.0.1:{port}/healthz"
        return urllib3.request("GET", url, retries=False, timeout=patient(1)).status == 200
    return False


def queue(name: str, gpus: int) -> Object:
    """A Queue that never gets more than so many GPUs."""
    spec = {"weight": 1, "reclaimable": True, "capability": {"nvidia.com/gpu": str(gpus)}}
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}
