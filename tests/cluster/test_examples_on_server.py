"""A real API server takes each example, and all that the operator would make of it, under strict validation."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from patience import patient
from servers.kubernetes_objects import Kubernetes, kubernetes_tool

from dapo_core.jobspec import parse_job
from dapo_operator.jobs.builders.common import Object, Site
from dapo_operator.jobs.builders.pods import pod
from dapo_operator.jobs.builders.scheduling import POD_GROUPS
from dapo_operator.jobs.builders.support import support_objects

FOLDER = Path(__file__).parents[2] / "examples"
# They name files of the machine they run on, which a cluster's pods do not have.
FOR_ONE_MACHINE = {"arithmetic.yaml", "arithmetic-grpo.yaml", "arithmetic-separated.yaml", "qwen2.5-7b-math.yaml"}
EXAMPLES = sorted(path for path in FOLDER.rglob("*.yaml") if path.name not in FOR_ONE_MACHINE)
NAMESPACE = "examples"


@pytest.fixture(scope="module")
def restricted(kubernetes: Kubernetes) -> Iterator[Kubernetes]:
    """A namespace that takes restricted pods only."""
    kubernetes.namespace(NAMESPACE, {"pod-security.kubernetes.io/enforce": "restricted"})
    yield kubernetes
    kubernetes.api.delete(f"/api/v1/namespaces/{NAMESPACE}")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_an_example_is_taken_whole(restricted: Kubernetes, path: Path) -> None:
    given = yaml.safe_load(path.read_text())
    given["metadata"]["namespace"] = NAMESPACE
    objects = [given, *made_of(given)]
    command = [str(kubernetes_tool("kubectl")), "--kubeconfig", str(restricted.kubeconfig), "create"]
    command += ["--dry-run=server", "--validate=strict", "--filename=-", "--output=name"]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    answer = subprocess.run(command, input=listed, capture_output=True, text=True, timeout=patient(120))
    assert answer.returncode == 0 and answer.stderr == "", answer.stderr
    assert len(answer.stdout.splitlines()) == len(objects)


def made_of(given: Object) -> Iterator[Object]:
    """Its pods, and what goes with them but a gang scheduler's PodGroup: those kinds are not installed here."""
    job = parse_job(given)
    yield from (each for each in support_objects(job, "uid", 1, "") if each["apiVersion"] not in POD_GROUPS.values())
    for role, index in job.spec.topology.layout.members():
        yield pod(job, "uid", "run-1", role, 1, index, Site(image="registry.example.org/dapo-trainer:1"))
