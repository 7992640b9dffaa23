"""Fixtures of the tests that need a Kubernetes; a conftest imports them."""

import re
from collections.abc import Iterator

import pytest

from servers.kubernetes import Cluster
from servers.kubernetes_existing import ExistingCluster
from servers.kubernetes_objects import Kubernetes

_NODES = 10


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A control plane of our own with the CRD and ten nodes of eight GPUs. A test that stops a part starts it again."""
    own = Cluster(apiserver_flags=["--storage-media-type=application/json"])  # for `chronicle`, which reads etcd
    try:
        yield own.start(nodes=_NODES)
    finally:
        own.stop()


@pytest.fixture(scope="session")
def kubernetes(request: pytest.FixtureRequest) -> Iterator[Kubernetes]:
    """The cluster of KUBECONFIG where USE_EXISTING_CLUSTER is true, else `cluster`; for tests that only use the API."""
    existing = ExistingCluster.of_the_user()
    if existing is None:
        yield request.getfixturevalue("cluster")
        return
    try:
        yield existing.start(nodes=_NODES)
    finally:
        existing.stop()


@pytest.fixture
def namespace(request: pytest.FixtureRequest, kubernetes: Kubernetes) -> Iterator[str]:
    """A namespace of `kubernetes` for one test, with the test's name; deleted afterwards, but not waited for."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:50].strip("-")
    yield kubernetes.namespace(name)
    kubernetes.api.delete(f"/api/v1/namespaces/{name}")
