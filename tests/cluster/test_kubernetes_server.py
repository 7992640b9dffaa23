"""The Kubernetes that the other tests stand on."""

import subprocess
from pathlib import Path

import pytest
import urllib3
from builders import MINIMAL
from servers import kubernetes_pods as pods
from servers.kubernetes import Cluster
from servers.kubernetes_api import Object, Refused
from servers.kubernetes_existing import ExistingCluster
from servers.kubernetes_objects import Kubernetes, kubernetes_tool
from servers.process import Process

JOBS = "/apis/dapo.io/v1alpha1/namespaces/{}/dapojobs"


def pod(name: str, **annotations: str) -> Object:
    notes = {f"tests.dapo.io/{key}": value for key, value in annotations.items()}
    spec = {"containers": [{"name": "main", "image": "fake", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    return {"metadata": {"name": name, "annotations": notes, "labels": {"dapo.io/job": "a"}}, "spec": spec}


def created(kubernetes: Kubernetes, namespace: str, content: Object, *, phase: str) -> str:
    """Its path, once it has a node and is in this phase."""
    path = f"/api/v1/namespaces/{namespace}/pods/{content['metadata']['name']}"
    kubernetes.api.create(path.rpartition("/")[0], content)

    def there() -> bool:
        found = kubernetes.api.get(path)
        return bool(found["spec"].get("nodeName")) and found["status"]["phase"] == phase

    kubernetes.wait_until(there, f"{path} is {phase}")
    return path


def gone(kubernetes: Kubernetes, path: str) -> bool:
    try:
        kubernetes.api.get(path)
    except Refused as refused:
        return refused.code == 404
    return False


def test_a_job_is_created_and_a_wrong_one_refused(kubernetes: Kubernetes, namespace: str) -> None:
    kubernetes.api.create(JOBS.format(namespace), MINIMAL)
    wrong = MINIMAL | {"metadata": {"name": "second"}, "spec": MINIMAL["spec"] | {"suspend": "perhaps"}}
    with pytest.raises(Refused, match=r"spec\.suspend") as refused:
        kubernetes.api.create(JOBS.format(namespace), wrong)
    assert refused.value.code == 422
    assert [job["metadata"]["name"] for job in kubernetes.api.items(JOBS.format(namespace))] == ["first"]


def test_a_pod_runs_on_a_fake_node_and_ends_as_it_is_told(kubernetes: Kubernetes, namespace: str) -> None:
    path = created(kubernetes, namespace, pod("works"), phase="Running")
    (found,) = pods.pods_of(kubernetes.api, namespace, job="a")
    pods.finish(kubernetes.api, found, 137, reason="OOMKilled", message="no memory")
    status = kubernetes.api.get(path)["status"]
    (container,) = status["containerStatuses"]
    assert status["phase"] == "Failed"
    assert {entry["type"] for entry in status["conditions"]} >= {"PodScheduled", "Ready"}
    assert container["state"]["terminated"]["exitCode"] == 137
    kubernetes.api.delete(path)
    kubernetes.wait_until(lambda: gone(kubernetes, path), "the pod is gone")


def test_a_pod_starts_and_ends_by_hand(kubernetes: Kubernetes, namespace: str) -> None:
    path = created(kubernetes, namespace, pod("slow", start="by-hand", end="by-hand"), phase="Pending")
    (found,) = pods.pods_of(kubernetes.api, namespace, job="a")
    pods.wait(kubernetes.api, found, "ImagePullBackOff")
    pods.run(kubernetes.api, found, ready=False)
    assert kubernetes.api.get(path)["status"]["phase"] == "Running"
    kubernetes.api.delete(path)
    assert kubernetes.api.get(path)["metadata"]["deletionTimestamp"]
    kubernetes.api.delete(path, gracePeriodSeconds=0)
    kubernetes.wait_until(lambda: gone(kubernetes, path), "the pod is gone")


def test_what_belongs_to_a_job_goes_with_it(kubernetes: Kubernetes, namespace: str) -> None:
    job = kubernetes.api.create(JOBS.format(namespace), MINIMAL)
    owned = pod("owned")
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": "first", "uid": job["metadata"]["uid"]}
    owned["metadata"]["ownerReferences"] = [owner]
    path = created(kubernetes, namespace, owned, phase="Running")
    kubernetes.api.delete(JOBS.format(namespace) + "/first")
    kubernetes.wait_until(lambda: gone(kubernetes, path), "the garbage collector has removed the pod")


def test_a_service_account_may_do_what_it_was_given(cluster: Cluster, namespace: str) -> None:
    kubeconfig = cluster.service_account_kubeconfig(namespace, "default")
    may = [str(kubernetes_tool("kubectl")), f"--kubeconfig={kubeconfig}", "auth", "can-i", "create", "pods"]
    assert subprocess.run(may, capture_output=True, text=True).stdout.strip() == "no"


def test_the_api_server_is_killed_paused_and_started_again(cluster: Cluster, namespace: str) -> None:
    cluster.api.create(JOBS.format(namespace), MINIMAL)
    cluster.kill_apiserver()
    assert not cluster.answers()
    cluster.restart()
    impatient = urllib3.Timeout(total=0.5)
    cluster.pause()
    try:
        with pytest.raises(urllib3.exceptions.TimeoutError), urllib3.PoolManager(cert_reqs="CERT_NONE") as pool:
            pool.request("GET", cluster.url + "/readyz", timeout=impatient, retries=False)
    finally:
        cluster.resume()
    cluster.wait_until(cluster.answers, "the API server answers again")
    assert len(cluster.api.items(JOBS.format(namespace))) == 1


def test_an_existing_cluster_is_used_and_left_as_it_was(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.delenv("USE_EXISTING_CLUSTER", raising=False)
    assert ExistingCluster.of_the_user() is None
    monkeypatch.setenv("USE_EXISTING_CLUSTER", "true")
    existing = ExistingCluster.of_the_user()
    assert existing
    nodes = [node["metadata"]["name"] for node in cluster.api.items("/api/v1/nodes")]
    try:
        existing.start(nodes=1)
        assert len(cluster.api.items("/api/v1/nodes")) == len(nodes) + 1
    finally:
        existing.stop()
    assert [node["metadata"]["name"] for node in cluster.api.items("/api/v1/nodes")] == nodes


@pytest.mark.parametrize("given", [True, False], ids=["given", "not there"])
def test_programs_of_kubebuilder_assets_come_first(
    given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    if given:
        (tmp_path / "etcd").touch()
    assert (kubernetes_tool("etcd") == tmp_path / "etcd") is given


def test_a_process_that_ends_early_says_why(tmp_path: Path) -> None:
    process = Process("sh", ["sh", "-c", "echo no such flag >&2; exit 3"], tmp_path / "log")
    process.start()
    with pytest.raises(RuntimeError, match=r"sh ended with 3:\nno such flag"):
        process.wait_until(lambda: False, 30)


def test_a_watch_ends_and_an_error_is_told(cluster: Cluster, namespace: str) -> None:
    cluster.api.create(JOBS.format(namespace), MINIMAL)
    (event,) = cluster.api.watch(JOBS.format(namespace), 1)
    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "first")
    with pytest.raises(Refused, match="404 NotFound"):
        cluster.api.get(JOBS.format(namespace) + "/absent")
