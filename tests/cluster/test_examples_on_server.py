"""A real API server takes each example, and all that the operator would make of it, under strict validation."""

import json
import re
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from patience import patient
from servers.kubernetes_objects import Kubernetes, kubernetes_tool

from dapo_core.jobspec import parse_job
from dapo_operator.jobs.builders.pods import pod
from dapo_operator.jobs.builders.support import support_objects
from dapo_operator.jobs.job_objects import Object, Site

FOLDER = Path(__file__).parents[2] / "examples"
# They name files of the machine they run on, which a cluster's pods do not have.
FOR_ONE_MACHINE = {"arithmetic.yaml", "arithmetic-grpo.yaml", "arithmetic-separated.yaml", "qwen2.5-7b-math.yaml"}
EXAMPLES = sorted(path for path in FOLDER.rglob("*.yaml") if path.name not in FOR_ONE_MACHINE)
NAMESPACE = "examples"
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
# RDMA registers memory (IPC_LOCK), and a node's folders are hostPath volumes: no other PodSecurity level takes them.
PRIVILEGED = {"16-gpus-rdma.yaml"}


@pytest.fixture(scope="module")
def server(kubernetes: Kubernetes) -> Iterator[Kubernetes]:
    """A namespace for each of two PodSecurity levels, and the PriorityClass that spot-rollouts.yaml names."""
    for level in ("restricted", "privileged"):
        kubernetes.namespace(f"{NAMESPACE}-{level}", {"pod-security.kubernetes.io/enforce": level})
    kubernetes.api.create(PRIORITY_CLASSES, {"metadata": {"name": "spot"}, "value": -10})
    yield kubernetes
    kubernetes.api.delete(f"{PRIORITY_CLASSES}/spot")
    for level in ("restricted", "privileged"):
        kubernetes.api.delete(f"/api/v1/namespaces/{NAMESPACE}-{level}")


def taken(server: Kubernetes, path: Path, level: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """kubectl's answer, and the number of objects that it was given."""
    given = yaml.safe_load(path.read_text())
    given["metadata"]["namespace"] = f"{NAMESPACE}-{level}"
    objects = [given, *made_of(given)]
    command = [str(kubernetes_tool("kubectl")), "--kubeconfig", str(server.kubeconfig), "create"]
    command += ["--dry-run=server", "--validate=strict", "--filename=-", "--output=name"]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    answer = subprocess.run(command, input=listed, capture_output=True, text=True, timeout=patient(120))
    return answer, len(objects)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_an_example_is_taken_whole(server: Kubernetes, path: Path) -> None:
    answer, count = taken(server, path, "privileged" if path.name in PRIVILEGED else "restricted")
    assert answer.returncode == 0 and answer.stderr == "", answer.stderr
    assert len(answer.stdout.splitlines()) == count


def test_a_models_image_is_taken_in_a_restricted_namespace(server: Kubernetes, tmp_path: Path) -> None:
    given = yaml.safe_load((FOLDER / "gpu" / "128-gpus.yaml").read_text())
    given["spec"]["topology"]["modelCache"] = {"image": f"registry.example.org/qwen2.5-32b@sha256:{'0' * 64}"}
    taken_whole(server, tmp_path, given)


def test_the_head_of_a_job_with_a_reward_file_mounts_it(server: Kubernetes, tmp_path: Path) -> None:
    """As docs/rewards.md says: a ConfigMap, mounted by the head's template."""
    text = (FOLDER.parent / "docs" / "rewards.md").read_text()
    [fence] = [found for found in re.findall(r"```yaml\n(.*?)```", text, re.S) if "configMap" in found]
    given = yaml.safe_load((FOLDER / "gpu" / "8-gpus.yaml").read_text())
    wanted = yaml.safe_load(textwrap.dedent(fence))
    given["spec"]["reward"] = wanted["reward"]
    given["spec"]["topology"]["head"] = wanted["topology"]["head"]
    taken_whole(server, tmp_path, given)
    head, *others = [made for made in made_of(given) if made["kind"] == "Pod"]
    folder = str(Path(wanted["reward"]["file"].rpartition(":")[0]).parent)
    mounts = [{each["mountPath"] for each in made["spec"]["containers"][0]["volumeMounts"]} for made in (head, *others)]
    assert folder in mounts[0] and not any(folder in each for each in mounts[1:])
    assert {"name": "rewards", "configMap": {"name": "my-rewards"}} in head["spec"]["volumes"]


def taken_whole(server: Kubernetes, tmp_path: Path, given: Object) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(given))
    answer, count = taken(server, path, "restricted")
    assert answer.returncode == 0 and answer.stderr == "", answer.stderr
    assert len(answer.stdout.splitlines()) == count


@pytest.mark.parametrize("name", sorted(PRIVILEGED))
def test_why_an_example_needs_a_privileged_namespace(server: Kubernetes, name: str) -> None:
    answer, _ = taken(server, FOLDER / "gpu" / name, "restricted")
    assert "IPC_LOCK" in answer.stderr and "hostPath" in answer.stderr


def made_of(given: Object) -> Iterator[Object]:
    """Its pods, and what goes with them but what a gang scheduler is asked for: its kinds are not installed here."""
    job = parse_job(given)
    yield from support_objects(job, "uid", "")
    for role, index in job.spec.topology.layout.members():
        yield pod(job, "uid", "run-1", role, 1, index, Site(image="registry.example.org/dapo-trainer:1"))
