"""A DAPOJob of four pods with real verl and vLLM: it learns, and everything that should tell of it does."""

import os
import re
from importlib.metadata import version

import pytest
from dashboard_pages import open_page, says, wait_for_charts
from e2e_installation import JOB, NAMESPACE, PATIENCE, TEAM, Installation
from servers.chromium import browser

from dapo_core.db import open_reader
from dapo_core.objectstore import open_store

pytestmark = pytest.mark.main_story


@pytest.fixture(scope="module")
def training(platform: Installation) -> Installation:
    """The job, past its first checkpoint."""
    platform.submit()
    platform.wait("four pods", lambda: len(platform.pods()) == 4, 60)
    platform.wait("a committed checkpoint", lambda: (platform.status().get("checkpoint") or {}).get("step"), 900)
    return platform


def test_the_pods_are_one_ray_cluster(training: Installation) -> None:
    roles = sorted(pod["metadata"]["labels"]["dapo.io/role"] for pod in training.pods().values())
    assert roles == ["head", "rollout", "rollout", "trainer"]
    assert all(pod["status"]["phase"] == "Running" for pod in training.pods().values())


def test_each_image_tells_its_versions(training: Installation) -> None:
    head = next(name for name in training.pods() if "-head-" in name)
    for namespace, pod in ((NAMESPACE, "deploy/dapo-operator"), (NAMESPACE, "deploy/dapo-dashboard"), (TEAM, head)):
        said = training.kubectl("--namespace", namespace, "exec", pod, "--", "dapo", "--version")
        assert f"dapo          {version('dapo-platform')}" in said, pod


def test_a_person_sees_it_move(training: Installation) -> None:
    line = training.kubectl("--namespace", TEAM, "get", "dapojob", JOB, "--no-headers")
    assert re.match(rf"{JOB}\s+Training\s+4/4\s+\d+\s+-?[\d.]+\s+[\d.]+\s+[\d.]+\s+\S+\s+0\s+1\s", line), line
    before = training.step()
    training.wait("another step", lambda: training.step() > before, 120)


def test_points_and_checkpoints_are_in_the_stores(training: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    run = training.status()["runId"]
    with training.stores() as secret:
        for name, value in secret.items():
            monkeypatch.setenv(name, value)
        reader = open_reader(secret["DAPO_METADATA_URL"])
        steps = [point.step for point in reader.curve(run, "critic/score/mean")]
        assert steps == list(range(1, len(steps) + 1))
        assert {each.state for each in reader.checkpoints(run)} >= {"committed"}
        keys = [info.key for info in open_store(os.environ["DAPO_STORE_URL"]).list(f"{run}/checkpoints/")]
    assert any(key.endswith("manifest.json") for key in keys), keys


def test_the_dashboard_shows_its_curves(training: Installation) -> None:
    with training.forwarded("service/dapo-dashboard", 80) as port, browser() as chromium:
        page = chromium.new_page(viewport={"width": 1400, "height": 1600})
        page.set_default_timeout(60_000 * PATIENCE)
        open_page(page, f"http://127.0.0.1:{port}/run?run={training.status()['runId']}")
        wait_for_charts(page, 11)
        page.screenshot(path=str(training.pictures / "dashboard.png"), full_page=True)
        says(page, "Response length", "Reward", "Entropy")
