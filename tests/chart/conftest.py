"""A control plane that records who asks for what, for the chart's tests alone."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.kubernetes import CONTROLLERS, Cluster

_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}


@pytest.fixture(scope="session")
def audit_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One line of JSON for each request of a service account."""
    return tmp_path_factory.mktemp("audit") / "audit.log"


@pytest.fixture(scope="session")
def audited(audit_log: Path) -> Iterator[Cluster]:
    """Who sets an owner reference that blocks deletion has to have the right to, as on OpenShift."""
    policy = audit_log.with_name("policy.json")
    policy.write_text(json.dumps(_POLICY))
    flags = [
        f"--audit-policy-file={policy}",
        f"--audit-log-path={audit_log}",
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
    ]
    cluster = Cluster(apiserver_flags=flags, controllers=CONTROLLERS)
    try:
        yield cluster.start(nodes=2)
    finally:
        cluster.stop()
