"""One control plane, and one operator for the tests that do nothing to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_jobs import JobOn, job_on
from operator_process import QUOTA, SHARED, OperatorProcess
from servers.cluster_fixtures import cluster, kubernetes, namespace
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
