"""A pod template: how it is merged over the pod that the operator builds, and what it must not contain because
the job's life depends on it. Pure."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from dapo_core.errors import Problem
from dapo_core.jobspec import DAPOJobSpec, Topology
from dapo_core.naming import GROUP, Role
from dapo_operator.jobs.job_objects import JOB_FOLDER, MODELS_FOLDER, WORK_FOLDER
from dapo_operator.jobs.observed import CONTAINER

# By the name of a list: the field that identifies its entries. Other lists are replaced.
_MERGE_KEYS: Final = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "schedulingGates": "name",
    "resourceClaims": "name",
}
# A strategic merge would replace these, but a template that adds a toleration does not mean to drop the operator's.
_ADDED: Final = frozenset({"tolerations", "envFrom"})
_METADATA: Final = ("name", "generateName", "namespace", "uid", "ownerReferences", "finalizers")
# Pod fields that the operator manages, and the reason or the alternative.
_POD_FIELDS: Final = {
    "restartPolicy": "the operator restarts whole attempts, so it is always Never; see spec.runPolicy",
    "hostname": "pods find each other by the host names that the operator sets",
    "subdomain": "pods find each other through the job's Service",
    "setHostnameAsFQDN": "pods find each other by the host names that the operator sets",
    "activeDeadlineSeconds": "set spec.runPolicy.activeDeadlineSeconds",
    "terminationGracePeriodSeconds": "set spec.runPolicy.gracePeriodSeconds",
    "priorityClassName": "set spec.runPolicy.priorityClassName, so that all pods of the gang have one priority",
    "priority": "set spec.runPolicy.priorityClassName",
    "nodeName": "a pod with a fixed node is never gang-scheduled; use nodeSelector or affinity",
    "ephemeralContainers": "a new pod cannot have them; use kubectl debug",
}
_CONTAINER_FIELDS: Final = {
    "command": "the operator starts the trainer",
    "args": "the operator starts the trainer",
    "readinessProbe": "the operator checks whether the role has joined its Ray cluster",
    "terminationMessagePath": "the operator reads the trainer's last words there",
    "terminationMessagePolicy": "the operator reads the trainer's last words there",
}
_OWN_ENVIRONMENT: Final = ("DAPO_", "RAY_AUTH_")
_OWN_VARIABLES: Final = ("HOME", "TMPDIR")
_OWN_FOLDERS: Final = (JOB_FOLDER, WORK_FOLDER, MODELS_FOLDER, "/dev/shm", "/tmp")


def merged(base: Any, over: Any, field: str = "") -> Any:
    """`over` merged into `base` as `kubectl patch --type strategic` merges pods; null removes a field."""
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        keys = [*base, *(key for key in over if key not in base)]
        whole = {
            key: merged(base[key], over[key], key) if key in base and key in over else _only(key, base, over)
            for key in keys
        }
        return {key: value for key, value in whole.items() if value is not None}
    if isinstance(base, list) and isinstance(over, list):
        return _lists(base, over, field)
    return over


def _only(key: str, base: Mapping[str, Any], over: Mapping[str, Any]) -> Any:
    return over[key] if key in over else base[key]


def _lists(base: list[Any], over: list[Any], field: str) -> list[Any]:
    if field in _ADDED:
        return [*base, *(entry for entry in over if entry not in base)]
    key = _MERGE_KEYS.get(field)
    # Anything else under the key, such as a mapping, is for the API server to refuse.
    if key is None or not all(isinstance(e, Mapping) and isinstance(e.get(key), str | int) for e in (*base, *over)):
        return over
    changes = {entry[key]: entry for entry in over}
    known = {entry[key] for entry in base}
    changed = [merged(entry, changes[entry[key]]) if entry[key] in changes else entry for entry in base]
    return [*changed, *(entry for entry in over if entry[key] not in known)]


def refused(spec: DAPOJobSpec, role: Role | None, template: Mapping[str, Any]) -> list[Problem]:
    """What in the template of a role, or (None) of all, conflicts with the fields that the operator manages."""
    root = f"spec.topology.{role}.podTemplate" if role else "spec.topology.podTemplate"
    return list(_Checks(spec.run_policy.gang.scheduler, spec.topology.gpu_resource, role, root).template(template))


def refused_of_site(field: str, role: Role | None, template: Mapping[str, Any]) -> list[Problem]:
    """The same of a template of the installation, which is for all schedulers; `field` is where it was given."""
    return list(_Checks("volcano", Topology().gpu_resource, role, field).template(template))


class _Checks:
    def __init__(self, scheduler: str, gpu_resource: str, role: Role | None, root: str) -> None:
        self._scheduler, self._gpu_resource, self._role, self._root = scheduler, gpu_resource, role, root

    def template(self, template: Mapping[str, Any]) -> Iterator[Problem]:
        for key in template:
            if key not in ("metadata", "spec", "apiVersion", "kind"):
                yield self._problem(key, "is not a field of a PodTemplateSpec: it has metadata and spec")
        yield from self._nulls("", template, ("metadata", "spec"))
        yield from self._in("metadata", template.get("metadata"), self._metadata)
        yield from self._in("spec", template.get("spec"), self._pod)

    def _in(self, path: str, value: Any, check: Callable[[Any], Iterator[Problem]]) -> Iterator[Problem]:
        if isinstance(value, Mapping):
            yield from check(value)
        elif value is not None:
            yield self._problem(path, "must be a mapping of fields")

    def _nulls(self, path: str, value: Mapping[str, Any], fields: tuple[str, ...]) -> Iterator[Problem]:
        """In a merge null removes a field, and these hold what the operator needs."""
        for field in fields:
            if field in value and value[field] is None:
                yield self._problem(f"{path}{field}", "is null, which would remove what the operator needs; omit it")

    def _metadata(self, metadata: Mapping[str, Any]) -> Iterator[Problem]:
        for key in _METADATA:
            if key in metadata:
                yield self._problem(f"metadata.{key}", "is managed by the operator; remove it")
        yield from self._nulls("metadata.", metadata, ("labels", "annotations"))
        for field in ("labels", "annotations"):
            values = metadata.get(field)
            if not isinstance(values, Mapping):
                if values is not None:
                    yield self._problem(f"metadata.{field}", "must be a mapping of strings")
                continue
            for key, value in values.items():
                if str(key).startswith(f"{GROUP}/"):
                    yield self._problem(
                        f"metadata.{field}[{key}]",
                        f"begins with {GROUP}/, which is reserved for the operator; use another prefix",
                    )
                elif not isinstance(value, str):
                    yield self._problem(f"metadata.{field}[{key}]", "must be a string; put it in quotes")

    def _pod(self, pod: Mapping[str, Any]) -> Iterator[Problem]:
        for key, remedy in _POD_FIELDS.items():
            if key in pod:
                yield self._problem(f"spec.{key}", f"is managed by the operator; {remedy}")
        if "schedulerName" in pod and self._scheduler in ("volcano", "coscheduling"):
            yield self._problem(
                "spec.schedulerName", "conflicts with spec.runPolicy.gang.scheduler; remove one of them"
            )
        yield from self._nulls("spec.", pod, ("containers", "volumes"))
        for field in ("containers", "initContainers", "volumes"):
            yield from self._entries(f"spec.{field}", pod.get(field))
        containers = pod.get("containers")
        for entry in containers if isinstance(containers, list) else ():
            if isinstance(entry, Mapping) and entry.get("name") == CONTAINER:
                yield from self._container(entry)
        volumes = pod.get("volumes")
        for entry in volumes if isinstance(volumes, list) else ():
            if isinstance(entry, Mapping) and str(entry.get("name", "")).startswith("dapo-"):
                yield self._problem(f"spec.volumes[{entry['name']}]", "is managed by the operator; use another name")

    def _entries(self, path: str, entries: Any) -> Iterator[Problem]:
        if entries is None:
            return
        if not isinstance(entries, list):
            yield self._problem(path, "must be a list")
            return
        for index, entry in enumerate(entries):
            if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
                hint = f"; the trainer's container is called {CONTAINER}" if path == "spec.containers" else ""
                yield self._problem(f"{path}[{index}]", f"has no name{hint}")

    def _container(self, container: Mapping[str, Any]) -> Iterator[Problem]:
        where = f"spec.containers[{CONTAINER}]"
        for key, remedy in _CONTAINER_FIELDS.items():
            if key in container:
                yield self._problem(f"{where}.{key}", f"is managed by the operator; {remedy}")
        yield from self._nulls(f"{where}.", container, ("env", "envFrom", "volumeMounts"))
        yield from self._environment(where, container.get("env"))
        yield from self._mounts(where, container.get("volumeMounts"))
        yield from self._resources(where, container.get("resources"))

    def _environment(self, where: str, env: Any) -> Iterator[Problem]:
        yield from self._entries(f"{where}.env", env)
        for entry in env if isinstance(env, list) else ():
            name = entry.get("name") if isinstance(entry, Mapping) else None
            if isinstance(name, str) and (name.startswith(_OWN_ENVIRONMENT) or name in _OWN_VARIABLES):
                yield self._problem(f"{where}.env[{name}]", "is set by the operator; remove it")

    def _mounts(self, where: str, mounts: Any) -> Iterator[Problem]:
        for entry in mounts if isinstance(mounts, list) else ():
            path = entry.get("mountPath") if isinstance(entry, Mapping) else None
            if isinstance(path, str) and path.rstrip("/") in _OWN_FOLDERS:
                yield self._problem(
                    f"{where}.volumeMounts[{path}]", "is managed by the operator; choose another mount path"
                )

    def _resources(self, where: str, resources: Any) -> Iterator[Problem]:
        own = {"cpu": "resources.cpu", "memory": "resources.memory", "ephemeral-storage": "scratch.size"}
        own[self._gpu_resource] = "gpusPerPod"
        for kind in ("requests", "limits"):
            values = resources.get(kind) if isinstance(resources, Mapping) else None
            for key in values if isinstance(values, Mapping) else ():
                # The template may set a CPU limit: the operator sets none.
                if key in own and (kind, key) != ("limits", "cpu"):
                    remedy = f"set spec.topology.{self._role or 'ROLE'}.{own[key]}"
                    yield self._problem(f"{where}.resources.{kind}[{key}]", f"is managed by the operator; {remedy}")

    def _problem(self, path: str, sentence: str) -> Problem:
        field = f"{self._root}.{path}"
        return Problem(field, f"{field} {sentence}.")
