"""The operator's rights: enough for a job's whole life, and none that it never uses.

The operator runs as the chart's service account on an API server that records each request. Afterwards every verb of
every rule has to be in that record, so a right that is added without need fails here.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from builders import MINIMAL
from chart_rendering import NAMESPACE, Object, named, rendered
from operator_process import OperatorProcess
from servers.kubernetes import Cluster
from servers.kubernetes_pods import finish, pods_of, run

from dapo_core.jobspec import parse_job
from dapo_core.naming import child_name
from dapo_operator.jobs.revision import revision_of

TEAM = "rights"
JOBS = f"/apis/dapo.io/v1alpha1/namespaces/{TEAM}/dapojobs"
KINDS = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}


def job(name: str, **policy: Any) -> Object:
    made = deepcopy(MINIMAL)
    made["metadata"]["name"] = name
    made["spec"]["topology"] = {"mode": "Separated"}
    made["spec"]["runPolicy"] = {"disruption": "Deny", **policy}
    return made


def revision(name: str) -> str:
    """Of the job file of such a job."""
    return revision_of(parse_job(job(name)).spec.model_dump(mode="json", by_alias=True, exclude_none=True))


# Where a job's support objects are, and what else could have their names.
TAKEN: dict[str, tuple[str, Object]] = {
    "/api/v1/namespaces/{}/services": ("", {"spec": {"ports": [{"port": 1}]}}),
    "/api/v1/namespaces/{}/configmaps": (f"-job-{revision('taken')}", {}),
    "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies": ("", {"spec": {"podSelector": {}}}),
    "/apis/policy/v1/namespaces/{}/poddisruptionbudgets": ("", {"spec": {"maxUnavailable": 1}}),
}
SUPPORT = [path for path in TAKEN if "configmaps" not in path]
NOT_SEEN_HERE = {
    # Asked by the API server's own plug-in of who sets owner references; no request.
    ("dapo.io", "dapojobs/finalizers", "update"),
    # After a write that came too late and after a watch that went silent: what the fault tests bring about.
    ("dapo.io", "dapojobs", "get"),
}


@pytest.fixture(scope="module")
def operator(audited: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """The operator with the chart's rights and no others."""
    audited.namespace(NAMESPACE)
    audited.namespace(TEAM)
    for each in rendered("cluster-wide"):
        if each["kind"] in KINDS:
            folder = KINDS[each["kind"]].format(namespace=NAMESPACE)
            audited.api.apply(f"{folder}/{each['metadata']['name']}", each)
    account = audited.service_account_kubeconfig(NAMESPACE, "dapo-operator")
    lease = {"DAPO_LEASE": "dapo-operator", "DAPO_LEASE_NAMESPACE": NAMESPACE, "DAPO_GANG_SCHEDULERS": ""}
    process = OperatorProcess(account, tmp_path_factory.mktemp("operator"), **lease).start()
    yield process
    process.stop()


def pods(cluster: Cluster, name: str, count: int) -> list[Object]:
    cluster.wait_until(lambda: len(pods_of(cluster.api, TEAM, job=name)) == count, f"{count} pods of {name}")
    return pods_of(cluster.api, TEAM, job=name)


def live(cluster: Cluster) -> None:
    """Is scaled, trains, is suspended, goes on, ends, and is removed after its time."""
    cluster.api.create(JOBS, job("life", ttlSecondsAfterFinished=1))
    pods(cluster, "life", 3)
    # Pods that start are recreated at once: the budget of the gang changes its size.
    cluster.api.patch(f"{JOBS}/life", {"spec": {"topology": {"rollout": {"replicas": 2}}}})
    for pod in pods(cluster, "life", 4):
        run(cluster.api, pod)
    # What is said again becomes a series of Events.
    for suspend, count in ((True, 0), (False, 4), (True, 0)):
        cluster.api.patch(f"{JOBS}/life", {"spec": {"suspend": suspend}})
        pods(cluster, "life", count)
        cluster.wait_until(partial(is_suspended, cluster, suspend), f"suspended: {suspend}")
    tamper(cluster)
    cluster.api.patch(f"{JOBS}/life", {"spec": {"suspend": False}})
    for pod in sorted(pods(cluster, "life", 4), key=lambda pod: "head" not in pod["metadata"]["name"]):
        run(cluster.api, pod)
        finish(cluster.api, pod, 0)
    cluster.wait_until(lambda: not cluster.api.items(JOBS), "the finished job is removed")


def tamper(cluster: Cluster) -> None:
    """Support objects that differ from what the next attempt needs: it applies them again."""
    for path in SUPPORT:
        for each in cluster.api.items(path.format(TEAM), labelSelector="dapo.io/job=life"):
            place = f"{path.format(TEAM)}/{each['metadata']['name']}"
            cluster.api.patch(place, {"metadata": {"annotations": {"dapo.io/digest": "another"}}})


def meet_others(cluster: Cluster) -> None:
    """Every name that the job wants is taken: it has to look whose they are."""
    for path, (suffix, content) in TAKEN.items():
        cluster.api.create(path.format(TEAM), {"metadata": {"name": f"taken{suffix}"}, **content})
    pod = {"containers": [{"name": "other", "image": "other"}]}
    name = child_name("taken-pod", "head", 1, 0)
    cluster.api.create(f"/api/v1/namespaces/{TEAM}/pods", {"metadata": {"name": name}, "spec": pod})
    for name in ("taken", "taken-pod"):
        cluster.api.create(JOBS, job(name))
        cluster.wait_until(partial(told, cluster, name), f"{name} says whose name it wants")
        cluster.api.delete(f"{JOBS}/{name}")


def is_suspended(cluster: Cluster, suspended: bool) -> bool:
    return bool(cluster.api.get(f"{JOBS}/life")["status"]["phase"] == "Suspended") == suspended


def told(cluster: Cluster, name: str) -> bool:
    status = cluster.api.get(f"{JOBS}/{name}").get("status", {})
    return any(each["reason"] == "NameTaken" for each in status.get("conditions", []))


def used(audit_log: Path) -> tuple[set[tuple[str, str, str]], list[str]]:
    """(API group, resource, verb) of the operator's requests, and those that were refused for want of a right."""
    found, refused = set(), []
    for line in audit_log.read_text().splitlines():
        event = json.loads(line)
        if event["user"]["username"] != f"system:serviceaccount:{NAMESPACE}:dapo-operator":
            continue
        reference = event.get("objectRef")
        if reference is None:
            continue
        resource = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
        found.add((reference.get("apiGroup", ""), resource, event["verb"]))
        if event["annotations"].get("authorization.k8s.io/decision") == "forbid":
            refused.append(f"{event['verb']} {resource}")
    return found, refused


def granted() -> set[tuple[str, str, str]]:
    objects = rendered("cluster-wide")
    rules = [
        *named(objects, "ClusterRole", f"{NAMESPACE}-dapo-operator")["rules"],
        *named(objects, "ClusterRole", f"{NAMESPACE}-dapo-operator-nodes")["rules"],
        *named(objects, "Role", "dapo-operator-lease")["rules"],
    ]
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_every_right_is_needed_and_none_is_missing(
    audited: Cluster, operator: OperatorProcess, audit_log: Path
) -> None:
    live(audited)
    meet_others(audited)
    operator.stop()
    found, refused = used(audit_log)
    assert refused == [], operator.log.read_text()
    assert granted() - found - NOT_SEEN_HERE == set(), "rights that nothing used"
