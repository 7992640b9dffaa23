"""helm install with embedded stores, and helm test."""

import re
import subprocess

import pytest
from e2e_installation import CHART, NAMESPACE, PATIENCE, RELEASE, TEAM, Installation
from servers.tools import tool


@pytest.mark.parametrize("program", [pytest.param("helm", marks=pytest.mark.main_story), "helm4"])
def test_lint(program: str) -> None:
    command = [str(tool(program)), "lint", "--strict", str(CHART)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.main_story
def test_everything_is_ready(platform: Installation) -> None:
    platform.install()
    pods = platform.get("pods", namespace=NAMESPACE)["items"]
    ready = [
        pod["metadata"]["name"]
        for pod in pods
        for condition in pod["status"]["conditions"]
        if condition["type"] == "Ready" and condition["status"] == "True"
    ]
    for component, count in {"operator": 2, "dashboard": 1, "postgres": 1, "minio": 1}.items():
        assert len([name for name in ready if name.startswith(f"{RELEASE}-{component}")]) == count, ready


def test_helm_test_trains_a_step(platform: Installation) -> None:
    said = platform.helm("test", RELEASE, f"--timeout={900 * PATIENCE:.0f}s")
    assert set(re.findall(r"Phase:\s+(\w+)", said)) == {"Succeeded"}, said
    assert platform.get("dapojobs", namespace=TEAM)["items"] == []
