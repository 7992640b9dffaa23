"""The tests of this folder run in the order of their files' names, on one installation: `make e2e`."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_installation import ROOT, Installation


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(2400))


@pytest.fixture(scope="session")
def platform() -> Iterator[Installation]:
    """A cluster with the images; nothing is installed yet. `make cluster-down` removes it."""
    subprocess.run([ROOT / "tests" / "kit" / "cluster.sh", "up"], check=True)
    pictures = ROOT / ".dapo" / "e2e"
    pictures.mkdir(parents=True, exist_ok=True)
    kubeconfig = Path(subprocess.check_output([ROOT / "tests" / "kit" / "cluster.sh", "kubeconfig"], text=True).strip())
    yield Installation(kubeconfig, pictures)
