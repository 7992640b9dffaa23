"""One control plane, and one operator for the tests that do nothing to it."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from cluster_jobs import JobOn, job_on
from operator_process import QUOTA, SHARED, OperatorProcess
from operator_stage import lose_a_node, stage
from servers.cluster_fixtures import cluster, kubernetes, namespace
from servers.kubernetes import Cluster
from servers.kubernetes_objects import Kubernetes

from dapo_core.db import upgrade

__all__ = ["cluster", "kubernetes", "namespace"]


@pytest.fixture(scope="session")
def shared(kubernetes: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A namespace in which an operator works; answers its log. A test's jobs have names of their own."""
    # What every pod of these tests has to pass.
    kubernetes.namespace(SHARED, {"pod-security.kubernetes.io/enforce": "restricted"})
    kubernetes.namespace(QUOTA)
    folder = tmp_path_factory.mktemp("operator")
    operator = OperatorProcess(kubernetes.kubeconfig, folder, namespaces=f"{SHARED},{QUOTA}").start()
    yield operator.log
    assert operator.stop() == 0, operator.log.read_text()


@pytest.fixture
def metadata_url(tmp_path: Path) -> str:
    """A metadata store of its own."""
    url = f"sqlite:///{tmp_path}/dapo.db"
    upgrade(url)
    return url


@pytest.fixture
def told(kubernetes: Kubernetes, namespace: str, metadata_url: str, tmp_path: Path) -> Iterator[JobOn]:
    """A job whose operator has that store."""
    folder, environment = tmp_path / "operator", {"DAPO_METADATA_URL": metadata_url}
    operator = OperatorProcess(kubernetes.kubeconfig, folder, namespaces=namespace, **environment).start()
    try:
        with job_on(kubernetes, namespace, "told") as made:
            yield made
    finally:
        assert operator.stop() == 0, operator.log.read_text()


@pytest.fixture(scope="session")
def lost_node(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator["Future[None] | None"]:
    """A job that loses a node, begun by the first module that names it; None where no test of this run asks for it."""

    def play() -> None:
        with stage(cluster, "lost-node", tmp_path_factory.mktemp("lost-node")) as at:
            lose_a_node(at)

    if not any(item.name.startswith("test_a_node_that_is_lost") for item in request.session.items):
        yield None
        return
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(play)
