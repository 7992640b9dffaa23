"""Many more running jobs than two cores can start: copies of those that run, written into etcd.

Copies differ in namespace, UID and run ID. The controller manager is ended first: it would work on them for an hour.
"""

import base64
import json
import re
import uuid
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import urllib3
from audit_log import by_verb
from process_usage import wait_until
from servers.kubernetes_api import Object
from stage import Figures, Moment, Stage

# Where etcd has the objects of a kind, and where the API server serves them.
_KINDS: Final = {
    "services/specs": ("/api/v1/services", "v1", "Service"),
    "configmaps": ("/api/v1/configmaps", "v1", "ConfigMap"),
    "networkpolicies": ("/apis/networking.k8s.io/v1/networkpolicies", "networking.k8s.io/v1", "NetworkPolicy"),
    "poddisruptionbudgets": ("/apis/policy/v1/poddisruptionbudgets", "policy/v1", "PodDisruptionBudget"),
    "pods": ("/api/v1/pods", "v1", "Pod"),
    "dapo.io/dapojobs": ("/apis/dapo.io/v1alpha1/dapojobs", "dapo.io/v1alpha1", "DAPOJob"),
}
_BATCH: Final = 100


def copies(stage: Stage) -> Figures:
    """The operator is started again with `options.copies` further namespaces for each one, with copies of all its jobs
    and their objects."""
    stage.meter.forget("kube-controller-manager")
    stage.cluster.controllers.stop()
    existing = [(kind, found) for kind in _KINDS for found in _objects(stage, kind)]
    jobs = [found for kind, found in existing if kind == "dapo.io/dapojobs"]
    # An operator that met the jobs before their pods would replace these.
    with stage.killed():
        stage.say(f"{stage.options.copies} copies of {len(jobs)} jobs")
        for number in range(stage.options.copies):
            _write(stage, existing, _renamed(stage.spaces, jobs, number))
        before, begun = stage.meter.all_cpu(), Moment.now()
    wanted = len(jobs) * (stage.options.copies + 1)
    wait_until(
        lambda: stage.reports("dapo_operator_jobs", 'condition="Training"') >= wanted,
        "the operator knows all copies",
        stage.options.limit,
    )
    known = begun.seconds()
    stage.quiet()
    writes = [each for each in stage.audit.since(begun.wall) if each.writes]
    return {
        "running_jobs": wanted,
        "running_pods": wanted * stage.subject.pods,
        "copies_known_s": known,
        "copies_writes": dict(by_verb(writes)),
        "copies_cpu_s": stage.meter.cpu(stage.subject.name) - before[stage.subject.name],
        "memory_with_copies_mib": stage.meter.memory(stage.subject.name),
    }


def _objects(stage: Stage, kind: str) -> Iterator[Object]:
    path, version, name = _KINDS[kind]
    for found in stage.cluster.api.items(path):
        if found["metadata"]["namespace"] in stage.spaces:
            yield {"apiVersion": version, "kind": name} | found


def _renamed(spaces: Iterable[str], jobs: Iterable[Object], number: int) -> dict[str, str]:
    """What each copied identity is called: of one length, and none contains another."""
    names = {space: f"copy{number:02}{space[-4:]}" for space in spaces}
    for job in jobs:
        names[job["metadata"]["uid"]] = str(uuid.uuid4())
        run = job["status"]["runId"]
        names[run] = run[:-4] + f"c{number:03}"
    return names


def _copied(existing: Iterable[tuple[str, Object]], renamed: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    """Keys of etcd, and their values."""
    pattern = re.compile("|".join(map(re.escape, renamed)))
    for kind, found in existing:
        meta = {
            key: value for key, value in found["metadata"].items() if key not in ("resourceVersion", "managedFields")
        }
        if kind != "dapo.io/dapojobs":
            meta["uid"] = str(uuid.uuid4())
        text = pattern.sub(lambda match: renamed[match[0]], json.dumps(found | {"metadata": meta}))
        space = renamed[meta["namespace"]]
        yield f"/registry/{kind}/{space}/{meta['name']}", text.encode()


def _write(stage: Stage, existing: Iterable[tuple[str, Object]], renamed: dict[str, str]) -> None:
    """One copy of everything, through etcd's gateway for JSON."""
    for space in stage.spaces:
        name = renamed[space]
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        stage.cluster.api.apply(f"/api/v1/namespaces/{name}", namespace)
    copied = _copied(existing, renamed)
    while part := list(islice(copied, _BATCH)):
        puts = [{"requestPut": {"key": _encoded(key.encode()), "value": _encoded(value)}} for key, value in part]
        answer = urllib3.request("POST", f"{stage.cluster.etcd_url}/v3/kv/txn", json={"success": puts}, timeout=60)
        if answer.status != 200:
            raise OSError(f"etcd refused a transaction: {answer.data.decode(errors='replace')[:300]}")


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()
