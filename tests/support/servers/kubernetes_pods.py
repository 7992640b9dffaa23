"""What the containers of a pod do, written into its status as a kubelet would."""

from datetime import UTC, datetime
from typing import Any

from servers.kubernetes_api import KubernetesApi, Object


def pods_of(api: KubernetesApi, namespace: str, **labels: str) -> list[Object]:
    """Pods with these labels; `job="a"` means the label `dapo.io/job`."""
    selector = ",".join(f"dapo.io/{key}={value}" for key, value in labels.items())
    return api.items(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector)


def run(api: KubernetesApi, pod: Object, *, ready: bool = True) -> None:
    """The containers run, and are ready or not."""
    _write(api, pod, "Running", {"running": {"startedAt": _now()}}, ready)


def finish(api: KubernetesApi, pod: Object, exit_code: int, *, reason: str = "", message: str = "") -> None:
    """The containers end with this code; `message` is what the termination log holds."""
    reason = reason or ("Completed" if exit_code == 0 else "Error")
    ended = {"exitCode": exit_code, "reason": reason, "message": message, "startedAt": _now(), "finishedAt": _now()}
    _write(api, pod, "Failed" if exit_code else "Succeeded", {"terminated": ended}, False)


def wait(api: KubernetesApi, pod: Object, reason: str, message: str = "") -> None:
    """The containers cannot start, such as `ImagePullBackOff`."""
    _write(api, pod, "Pending", {"waiting": {"reason": reason, "message": message}}, False)


def _write(api: KubernetesApi, pod: Object, phase: str, state: dict[str, Any], ready: bool) -> None:
    names = [container["name"] for container in pod["spec"]["containers"]]
    status = "True" if ready else "False"
    conditions = [{"type": kind, "status": status, "lastTransitionTime": _now()} for kind in _READINESS]
    containers = [
        {"name": name, "image": "fake", "imageID": "", "ready": ready, "restartCount": 0, "state": state}
        for name in names
    ]
    meta = pod["metadata"]
    path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
    # The strategic kind merges conditions by type, so what the scheduler wrote stays.
    content = {"status": {"phase": phase, "conditions": conditions, "containerStatuses": containers}}
    api.patch(path, content, "strategic")


_READINESS = ("Ready", "ContainersReady")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
