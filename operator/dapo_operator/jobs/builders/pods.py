"""The pods of a job: one container `dapo` each, whose program is its role."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from dapo_core.errors import Problem
from dapo_core.jobspec import DAPOJob, DAPOJobSpec, Resources, RunPolicy, Scratch
from dapo_core.naming import Role, child_labels, child_name, host_name
from dapo_core.run.status import Pinned
from dapo_operator.jobs.builders.disks import (
    POD_NAME,
    ephemeral_request,
    model_environment,
    model_mounts,
    model_volumes,
    work_mount,
    work_volume,
)
from dapo_operator.jobs.builders.pod_privileges import node_folders, privileges
from dapo_operator.jobs.builders.pod_template import merged, refused
from dapo_operator.jobs.builders.scheduling import ANYWHERE, Avoid, avoiding, placement
from dapo_operator.jobs.gangs.schedulers import SCHEDULERS
from dapo_operator.jobs.job_objects import (
    HEAD_PORT,
    JOB_FOLDER,
    WORK_FOLDER,
    Object,
    Site,
    config_name,
    group_name,
    owner,
    service_name,
    token_name,
)
from dapo_operator.jobs.observed import CONTAINER

# What a pod gets beyond the grace period for the checkpoint: time to deliver the last metrics and to stop Ray.
MARGIN_SECONDS: Final = 30
_USER: Final = 1000
# How often the kubelet looks for readiness, and how often in a row it has to find none before it believes that.
_SEEN_READY: Final = {"periodSeconds": 5, "failureThreshold": 3}
# The next attempt waits until all trainers that stay for it are seen not to be ready: the processes of the last one
# have ended then.
_SEEN_LEAVING: Final = {"periodSeconds": 2, "failureThreshold": 2}


def template_problems(job: DAPOJob, site: Site) -> list[Problem]:
    """What is wrong with the pod templates of the job and of its roles."""
    common = job.spec.topology.pod_template
    problems = refused(job.spec, None, common)
    if site.restricts_templates:
        problems += _not_allowed([*_privileges("spec.topology.podTemplate", common), *node_folders(job.spec)])
    checked = not problems
    for role, count in job.spec.topology.layout.pods.items():
        template = _template(job.spec, role)
        refusals = refused(job.spec, role, template)
        if site.restricts_templates:
            refusals += _not_allowed(_privileges(f"spec.topology.{role}.podTemplate", template))
        given = (*_site_templates(site, role), common, template)
        if checked and not refusals and count and not (site.image or any(map(_image, given))):
            field = f"spec.topology.{role}.podTemplate.spec.containers[{CONTAINER}].image"
            refusals = [Problem(field, f"{field} is missing, and the installation has no default image: set one.")]
        # A Colocated job has no rollout pods, but a mistake in their template would show up once the mode is changed.
        problems += refusals
    return problems


def _privileges(root: str, template: Mapping[str, Any]) -> list[str]:
    return [f"{root}.{path}" for path in privileges(template)]


def _not_allowed(fields: Iterable[str]) -> list[Problem]:
    sentence = "is not allowed in this installation (jobs.podTemplatePolicy): remove it, or ask the administrator"
    return [Problem(field, f"{field} {sentence}.") for field in fields]


def pod(
    job: DAPOJob,
    uid: str,
    run_id: str,
    role: Role,
    attempt: int,
    index: int,
    site: Site,
    pinned: Pinned | None = None,
    avoid: Avoid = ANYWHERE,
    life: int = 1,
    joins: bool = False,
) -> Object:
    """One complete pod: what the operator builds, with the templates of the installation, of the job and of the role
    merged over it, and of `pinned` the job file and the images. `joins`: trainers of the attempt were there before."""
    spec, name = job.spec, job.metadata.name
    revision = pinned.revision if pinned is not None else None
    labels = child_labels(name, run_id, role, attempt, index, life)
    policy = spec.run_policy
    own = spec.topology.rollout.priority_class_name if role == "rollout" else None
    priority = own or policy.priority_class_name
    gang = SCHEDULERS[policy.gang.scheduler].pod_fields(group_name(name, attempt), policy.gang.queue, site)
    environment = _environment(job, uid, role, attempt, index, run_id, revision, joins)
    base = {
        "metadata": {"labels": {**labels, **gang.labels}, "annotations": dict(gang.annotations)},
        "spec": {
            "restartPolicy": "Never",
            "hostname": host_name(name, role, attempt, index, life),
            "subdomain": service_name(name),
            "terminationGracePeriodSeconds": grace_seconds(spec.run_policy),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                **({"runAsUser": _USER, "runAsGroup": _USER, "fsGroup": _USER} if site.fixed_user else {}),
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **({"priorityClassName": priority} if priority else {}),
            **gang.spec,
            **placement(spec, name, role, None if joins else attempt, site),
            "containers": [_container(job, role, site, environment)],
            "volumes": _volumes(job, role, revision),
        },
    }
    built: Object = base
    for template in (*_site_templates(site, role), spec.topology.pod_template, _template(spec, role)):
        built = merged(built, template)
    built = {"apiVersion": "v1", "kind": "Pod", "metadata": built["metadata"], "spec": avoiding(built["spec"], avoid)}
    built["metadata"] |= {
        "name": child_name(name, role, attempt, index, life),
        "namespace": job.metadata.namespace,
        "ownerReferences": [owner(name, uid)],
    }
    _pin_image(built, (pinned.images if pinned is not None else None) or {})
    return built


def _pin_image(built: Object, images: Mapping[str, str]) -> None:
    for container in built["spec"]["containers"]:
        if container["name"] == CONTAINER:
            container["image"] = images.get(container["image"], container["image"])


def restarts_in_place(spec: DAPOJobSpec) -> bool:
    """Whether trainers may stay for the next attempt. Those of a gang scheduler belong to its group of one attempt."""
    return spec.run_policy.restart == "InPlace" and SCHEDULERS[spec.run_policy.gang.scheduler].resource is None


def grace_seconds(policy: RunPolicy) -> int:
    """Seconds that a pod has to end. They are the same for all: the first pod that is terminated has the driver save a
    checkpoint, which needs every pod; a pod whose driver is gone ends at once."""
    return policy.grace_period_seconds + MARGIN_SECONDS


def _template(spec: DAPOJobSpec, role: Role) -> dict[str, Any]:
    return {
        "head": spec.topology.head.pod_template,
        "trainer": spec.topology.trainer.pod_template,
        "rollout": spec.topology.rollout.pod_template,
    }[role]


def scratch_of(spec: DAPOJobSpec, role: Role) -> Scratch | None:
    """What a role's pods say of their disk."""
    return {
        "head": spec.topology.head.scratch,
        "trainer": spec.topology.trainer.scratch,
        "rollout": spec.topology.rollout.scratch,
    }[role]


def _resources(spec: DAPOJobSpec, role: Role) -> Resources:
    return {
        "head": spec.topology.head.resources,
        "trainer": spec.topology.trainer.resources,
        "rollout": spec.topology.rollout.resources,
    }[role]


def _site_templates(site: Site, role: Role) -> list[Mapping[str, Any]]:
    return [site.pod_templates.get("all", {}), site.pod_templates.get(role, {})]


def _image(template: Mapping[str, Any]) -> str:
    containers = template.get("spec", {}).get("containers", [])
    named: Iterator[str] = (entry.get("image", "") for entry in containers if entry.get("name") == CONTAINER)
    return next(named, "")


def _container(job: DAPOJob, role: Role, site: Site, environment: list[Object]) -> Object:
    spec = job.spec
    wanted, gpus = _resources(spec, role), spec.topology.layout.gpus_per_pod(role)
    accelerators = {spec.topology.gpu_resource: str(gpus)} if gpus else {}
    disk = ephemeral_request(scratch_of(spec, role))
    return {
        "name": CONTAINER,
        "image": site.image,
        "imagePullPolicy": site.image_pull_policy,
        "command": ["python", "-m", "dapo_trainer.pod", role],
        "env": environment,
        "envFrom": [{"secretRef": {"name": spec.stores.secret_name}}],
        "ports": [{"name": "ray", "containerPort": HEAD_PORT}] if role == "head" else [],
        "resources": {
            "requests": {"cpu": wanted.cpu, "memory": wanted.memory} | disk | accelerators,
            "limits": {"memory": wanted.memory} | accelerators,
        },
        # The pod's program writes the file: the head once Ray's head is up, a trainer once it has joined, a rollout
        # once its vLLM responds.
        "readinessProbe": {
            "exec": {"command": ["test", "-f", f"{WORK_FOLDER}/ready"]},
            **(_SEEN_LEAVING if role == "trainer" and restarts_in_place(spec) else _SEEN_READY),
            "timeoutSeconds": 5,
        },
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "dapo-job", "mountPath": JOB_FOLDER, "readOnly": True},
            work_mount(scratch_of(spec, role)),
            {"name": "dapo-tmp", "mountPath": "/tmp"},
            {"name": "dapo-shm", "mountPath": "/dev/shm"},
            *model_mounts(spec.topology.model_cache),
            *({"name": f"dapo-claim-{claim}", "mountPath": f"/pvc/{claim}"} for claim in claims(spec)),
        ],
    }


def _environment(
    job: DAPOJob, uid: str, role: Role, attempt: int, index: int, run_id: str, revision: str | None, joins: bool
) -> list[Object]:
    spec, name, namespace = job.spec, job.metadata.name, job.metadata.namespace
    head = f"{child_name(name, 'head', attempt, 0)}.{service_name(name)}.{namespace}.svc:{HEAD_PORT}"
    values = {
        "DAPO_ROLE": role,
        "DAPO_INDEX": str(index),
        "DAPO_RUN_ID": run_id,
        "DAPO_ATTEMPT": str(attempt),
        "DAPO_JOB": f"{JOB_FOLDER}/job.json",
        "DAPO_WORK_DIR": f"{WORK_FOLDER}/attempt-{attempt}",
        "DAPO_HEAD_ADDRESS": head,
        "DAPO_TERMINATION_LOG": "/dev/termination-log",
        "HOME": f"{WORK_FOLDER}/home",
        "TMPDIR": f"{WORK_FOLDER}/tmp",
        "RAY_AUTH_MODE": "token",
    }
    if role == "trainer" and restarts_in_place(spec):
        values |= {"DAPO_RESTART": "InPlace"} | ({"DAPO_TRAINERS_STAYED": "1"} if joins else {})
    values |= model_environment(spec.topology.model_cache)
    if (uri := spec.checkpoints.uri) is not None:  # overrides the stores' Secret
        values["DAPO_STORE_URL"] = uri.replace("pvc://", "file:///pvc/", 1) if uri.startswith("pvc://") else uri
    pod_name = {"fieldRef": {"fieldPath": "metadata.name"}}
    token = {"secretKeyRef": {"name": token_name(name, uid, revision), "key": "token"}}
    return [
        *({"name": key, "value": value} for key, value in values.items()),
        {"name": "RAY_AUTH_TOKEN", "valueFrom": token},
        {"name": POD_NAME, "valueFrom": pod_name},
        # Of the cluster's first family of addresses, as is that of the head's name.
        {"name": "DAPO_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "DAPO_NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]


def _volumes(job: DAPOJob, role: Role, revision: str | None) -> list[Object]:
    shm = _resources(job.spec, role).shm
    return [
        {"name": "dapo-job", "configMap": {"name": config_name(job.metadata.name, revision)}},
        {"name": "dapo-work", **work_volume(scratch_of(job.spec, role))},
        {"name": "dapo-tmp", "emptyDir": {}},
        *model_volumes(job.spec.topology.model_cache, role),
        {"name": "dapo-shm", "emptyDir": {"medium": "Memory", "sizeLimit": shm}},
        *({"name": f"dapo-claim-{claim}", "persistentVolumeClaim": {"claimName": claim}} for claim in claims(job.spec)),
    ]


def claims(spec: DAPOJobSpec) -> list[str]:
    """PersistentVolumeClaims in the spec's pvc:// addresses; each is mounted at /pvc/{claim} in every pod."""
    addresses = [
        spec.model.source,
        *(entry.source for entry in spec.data.train),
        *(entry.source for entry in spec.data.validation),
        spec.checkpoints.uri or "",
        spec.checkpoints.resume_from or "",
    ]
    return sorted(
        {address.removeprefix("pvc://").split("/")[0] for address in addresses if address.startswith("pvc://")}
    )
