"""What a job's pod template may not ask for where the installation restricts them (DAPO_POD_TEMPLATE_POLICY): the
permissions of other service accounts, and the node. Pure.

Whoever may create DAPOJobs has the operator create pods for them, also without the right to create pods.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dapo_core.jobspec import DAPOJobSpec

# Of the pod, by the values that are harmless.
_POD: Final[Mapping[str, tuple[Any, ...]]] = {
    "serviceAccountName": ("", "default", None),
    "serviceAccount": ("", "default", None),
    "automountServiceAccountToken": (False,),
    "hostNetwork": (False, None),
    "hostPID": (False, None),
    "hostIPC": (False, None),
}
_CONTAINER: Final[Mapping[str, tuple[Any, ...]]] = {
    "privileged": (False, None),
    "allowPrivilegeEscalation": (False,),
    "procMount": ("Default", None),
}


def privileges(template: Mapping[str, Any]) -> Iterator[str]:
    """The fields of a PodTemplateSpec that ask for more than a job's pod has, as paths below the template."""
    pod = _mapping(template.get("spec"))
    for name, harmless in _POD.items():
        if name in pod and pod[name] not in harmless:
            yield f"spec.{name}"
    if "securityContext" in pod:
        yield from _security("spec.securityContext", pod["securityContext"])
    for entry in _entries(pod.get("volumes")):
        sources = _entries(_mapping(entry.get("projected")).get("sources"))
        if "hostPath" in entry or any("serviceAccountToken" in source for source in sources):
            yield f"spec.volumes[{entry.get('name')}]"
    for kind in ("containers", "initContainers"):
        for entry in _entries(pod.get(kind)):
            where = f"spec.{kind}[{entry.get('name')}]"
            if "securityContext" in entry:
                yield from _security(f"{where}.securityContext", entry["securityContext"])
            if any(port.get("hostPort") for port in _entries(entry.get("ports"))):
                yield f"{where}.ports.hostPort"


def node_folders(spec: DAPOJobSpec) -> Iterator[str]:
    """The fields of a job that mount a folder of the node."""
    topology = spec.topology
    if topology.model_cache is not None and topology.model_cache.host_path:
        yield "spec.topology.modelCache.hostPath"
    for role, place in (("head", topology.head), ("trainer", topology.trainer), ("rollout", topology.rollout)):
        if place.scratch is not None and place.scratch.host_path:
            yield f"spec.topology.{role}.scratch.hostPath"


def _security(path: str, context: Any) -> Iterator[str]:
    """Of a pod's or a container's securityContext; null would remove what the operator sets."""
    if not isinstance(context, Mapping):
        yield path
        return
    for name, harmless in _CONTAINER.items():
        if name in context and context[name] not in harmless:
            yield f"{path}.{name}"
    if "capabilities" in context and context["capabilities"] != {"drop": ["ALL"]}:
        yield f"{path}.capabilities"
    if context.get("runAsUser") == 0 or context.get("runAsNonRoot", True) is not True:
        yield f"{path}.runAsUser"
    for name in ("seccompProfile", "appArmorProfile"):
        if name in context and _mapping(context[name]).get("type") not in ("RuntimeDefault", "Localhost"):
            yield f"{path}.{name}"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _entries(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
