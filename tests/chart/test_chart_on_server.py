"""A real API server takes all that the chart makes, and Helm installs, upgrades and removes it there."""

import json
import subprocess
from base64 import b64decode
from pathlib import Path

import pytest
from chart_rendering import CHART, INSTALLATIONS, NAMESPACE, Object, helm, pod_templates, rendered
from patience import patient
from servers.kubernetes import Cluster
from servers.tools import tool

# Kinds of the Prometheus operator, which is not installed here.
FOREIGN = {"ServiceMonitor", "PrometheusRule"}
# Kinds of the whole cluster.
UNBOUND = {"Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}


@pytest.fixture(scope="module")
def namespaces(audited: Cluster) -> Cluster:
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    for name in (NAMESPACE, "team-a", "team-b"):
        audited.namespace(name, restricted)
    return audited


def kubectl(cluster: Cluster, *arguments: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    command = [str(tool("kubectl")), "--kubeconfig", str(cluster.kubeconfig), *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=patient(120))


def dry_run(cluster: Cluster, objects: list[Object]) -> "subprocess.CompletedProcess[str]":
    for each in objects:
        if each["kind"] not in UNBOUND:
            each["metadata"].setdefault("namespace", NAMESPACE)
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    flags = ["--dry-run=server", "--validate=strict", "--server-side", "--force-conflicts"]
    return kubectl(cluster, "apply", *flags, "--filename", "-", given=listed)


@pytest.mark.parametrize("name", INSTALLATIONS)
def test_the_server_takes_every_object(namespaces: Cluster, name: str) -> None:
    # A Pod's account has to be there already: pods are below.
    answer = dry_run(namespaces, [each for each in rendered(name) if each["kind"] not in {*FOREIGN, "Pod"}])
    assert answer.returncode == 0, answer.stderr
    assert "Warning" not in answer.stderr, answer.stderr


@pytest.mark.parametrize("name", INSTALLATIONS)
def test_pods_pass_admission_where_only_restricted_ones_may_run(namespaces: Cluster, name: str) -> None:
    """What a controller would be refused is refused here at once."""
    pods = []
    for key, template in pod_templates(rendered(name)).items():
        template["metadata"] = {
            "name": key.lower().replace("/", "-"),
            "namespace": template["metadata"].get("namespace", NAMESPACE),
            "labels": template["metadata"]["labels"],
        }
        spec = template["spec"]
        # Accounts are the chart's, which is not installed, and volumes are the StatefulSet controller's.
        spec.pop("serviceAccountName", None)
        claims = {mount["name"] for each in spec["containers"] for mount in each.get("volumeMounts", [])}
        claims -= {volume["name"] for volume in spec.get("volumes", [])}
        spec["volumes"] = [*spec.get("volumes", []), *({"name": claim, "emptyDir": {}} for claim in claims)]
        pods.append(template)
    answer = dry_run(namespaces, pods)
    assert answer.returncode == 0, answer.stderr


def test_install_upgrade_uninstall(namespaces: Cluster, tmp_path: Path) -> None:
    cluster, namespace = namespaces, "release"
    cluster.namespace(namespace)
    values = tmp_path / "values.json"

    def run(*command: str, **changes: object) -> None:
        values.write_text(json.dumps({"crds": {"enabled": False}, **changes}))
        place = ["--kubeconfig", str(cluster.kubeconfig), "--namespace", namespace]
        files = ["--values", str(values)] if command[0] in ("install", "upgrade") else []
        answer = helm(*command, *place, *files, "--no-hooks")
        assert answer.returncode == 0, answer.stderr

    def secrets(path: str) -> dict[str, str]:
        data: dict[str, str] = cluster.api.get(f"/api/v1/namespaces/{path}")["data"]
        return {key: b64decode(value).decode() for key, value in data.items()}

    run("install", "dapo", str(CHART), jobNamespaces=[{"name": "team-a"}])
    first, store = secrets(f"{namespace}/secrets/dapo-credentials"), secrets("team-a/secrets/dapo-stores")
    run("upgrade", "dapo", str(CHART), jobNamespaces=[{"name": "team-a"}, {"name": "team-b"}])
    second = secrets(f"{namespace}/secrets/dapo-credentials")
    assert first.items() <= second.items(), "an upgrade made new passwords"
    assert second.keys() - first.keys() == {"writer-password.team-b", "minio-password.team-b"}
    assert secrets("team-a/secrets/dapo-stores") == store
    run("rollback", "dapo", "1")
    assert secrets(f"{namespace}/secrets/dapo-credentials").items() >= first.items()
    run("uninstall", "dapo")
    assert secrets(f"{namespace}/secrets/dapo-credentials").items() >= first.items()
    left = cluster.api.items(f"/apis/apps/v1/namespaces/{namespace}/deployments")
    assert left == []
    # The next install takes up what was kept.
    run("install", "dapo", str(CHART), jobNamespaces=[{"name": "team-a"}])
    assert secrets("team-a/secrets/dapo-stores") == store
