"""Anything that a team may write through the API server, against the operator's process: jobs of any depth, size and
type, pods that look like a job's, and what containers leave as their last words.

The operator lives, serves another namespace, tells each job's owner something, and lets go of what is deleted.
`DAPO_FUZZ_EXAMPLES` sets how many objects are tried.
"""

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from cluster_jobs import job_object, job_on
from fuzzing import EXAMPLES, JSON, TEXT
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from operator_process import OperatorProcess
from servers.kubernetes_api import Object, Refused
from servers.kubernetes_objects import Kubernetes

from dapo_operator.kube import nesting

JOBS = "/apis/dapo.io/v1alpha1/namespaces/{}/dapojobs"
# Where a job takes anything, and where it does not; "@" is replaced by the JSON, which no Python object could hold.
PLACES: list[dict[str, Any]] = [
    {"verlOverrides": "@"},
    {"verlOverrides": {"trainer": "@"}},
    {"topology": {"podTemplate": "@"}},
    {"topology": {"head": {"podTemplate": {"spec": "@"}}}},
    {"topology": {"trainer": {"podTemplate": {"spec": {"containers": [{"name": "dapo", "resources": "@"}]}}}}},
    {"topology": {"rollout": {"podTemplate": {"metadata": {"annotations": "@"}}}}},
    {"runPolicy": "@"},
    {"algorithm": {"clip": "@"}},
]
# How a value of any size is written; small itself, for what hypothesis keeps and prints of it.
SHAPES: dict[str, Callable[[int], str]] = {
    "objects in objects": lambda size: '{"a":' * size + "1" + "}" * size,
    "lists in lists": lambda size: "[" * size + "]" * size,
    "a long text": lambda size: json.dumps({"a": "x" * size * 30}),
    "many fields": lambda size: json.dumps({f"a{index}": index for index in range(size)}),
    "an open end": lambda size: "[" * size,
}
ANYTHING = st.one_of(
    JSON.map(json.dumps),
    st.tuples(st.sampled_from(sorted(SHAPES)), st.integers(1, 9000)),
    st.sampled_from(["1e999", "-0", "9" * 400, '"\\ud800"', '"\\u0000"', "null", "true"]),
)
LABELS = st.fixed_dictionaries(
    {},
    optional={
        "dapo.io/job": st.sampled_from(["theirs", "hostile-0", "x"]),
        "dapo.io/role": st.sampled_from(["head", "trainer", "rollout", "other", ""]),
        "dapo.io/attempt": st.sampled_from(["1", "0", "9" * 63, "-1", "x"]),
        "dapo.io/index": st.sampled_from(["0", "1", "9" * 63, "x"]),
        "dapo.io/run": st.text("abc-0", max_size=10),
    },
)
MESSAGES = st.one_of(
    st.integers(1, 4096).map(lambda size: size * "["),
    st.binary(max_size=300).map(lambda raw: raw.decode("utf-8", "replace")),
    JSON.map(json.dumps),
    st.builds(lambda reason, message: json.dumps({"reason": reason, "message": message}), TEXT, TEXT),
)
# The same objects in each run of the tests, others where somebody looks for more.
LOOKING = "DAPO_FUZZ_EXAMPLES" in os.environ
AT_ONCE = settings(
    max_examples=EXAMPLES if LOOKING else 40,
    derandomize=not LOOKING,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # what was made cannot be made again to shrink it
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)


@dataclass
class Scene:
    """A hostile namespace and one of others, with one operator."""

    kubernetes: Kubernetes
    operator: OperatorProcess
    hostile: str
    others: str
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def create(self, path: str, content: Object | bytes) -> bool:
        """Whether the API server takes the object."""
        assert self.operator.process.poll() is None, self.operator.log.read_text()[-5000:]
        try:
            # Without a warning for each unknown field, of which a client takes 100.
            self.kubernetes.api.create(path, content, fieldValidation="Ignore")
        except Refused:
            return False
        except RecursionError:  # of what it answers, which is as deep
            return True
        return True

    def jobs(self) -> list[Object]:
        """The hostile ones, without what is nested too deeply for this process."""
        text = self.kubernetes.api.text(JOBS.format(self.hostile))
        found: list[Object] = json.loads(nesting.pruned(text.encode()))["items"]
        return found


@pytest.fixture(scope="module")
def scene(kubernetes: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    hostile, others = kubernetes.namespace("dapo-hostile"), kubernetes.namespace("dapo-others")
    folder = tmp_path_factory.mktemp("hostile")
    operator = OperatorProcess(kubernetes.kubeconfig, folder, namespaces=f"{hostile},{others}").start()
    try:
        yield Scene(kubernetes, operator, hostile, others)
    finally:
        assert operator.stop() == 0, operator.log.read_text()[-5000:]
        for name in (hostile, others):
            kubernetes.api.delete(f"/api/v1/namespaces/{name}")


def test_a01_a02_a07_a17_a19_anything_that_a_team_writes(scene: Scene) -> None:
    @given(st.sampled_from(PLACES), ANYTHING)
    @AT_ONCE
    def jobs(place: dict[str, Any], anything: str | tuple[str, int]) -> None:
        value = anything if isinstance(anything, str) else SHAPES[anything[0]](anything[1])
        text = json.dumps(job_object(f"hostile-{next(scene.numbers)}", **place))
        scene.create(JOBS.format(scene.hostile), text.replace('"@"', value).encode())

    @given(LABELS, MESSAGES, st.integers(-(2**31), 2**31 - 1), TEXT)
    @AT_ONCE
    def pods(labels: dict[str, str], message: str, code: int, reason: str) -> None:
        name = f"stranger-{next(scene.numbers)}"
        path = f"/api/v1/namespaces/{scene.hostile}/pods"
        container = {"name": "dapo", "image": "x"}
        metadata = {"name": name, "labels": labels}
        if scene.create(path, {"metadata": metadata, "spec": {"containers": [container], "nodeName": "nowhere"}}):
            ended = {"exitCode": code, "reason": reason, "message": message}
            status = {"name": "dapo", "image": "x", "imageID": reason, "ready": False, "restartCount": 0}
            change = {"phase": "Failed", "containerStatuses": [{**status, "state": {"terminated": ended}}]}
            try:
                scene.kubernetes.api.patch(f"{path}/{name}/status", {"status": change})
            except Refused:
                return

    jobs()
    pods()
    with job_on(scene.kubernetes, scene.others, "theirs") as theirs:
        theirs.submit()
        scene.kubernetes.wait_until(lambda: theirs.status().get("attempts"), "another namespace is served")

    def untold() -> list[str]:
        return [each["metadata"]["name"] for each in scene.jobs() if not each.get("status", {}).get("conditions")]

    scene.kubernetes.wait_until(lambda: not untold(), "every owner gets a message")
    # One by one: the API server ends a request after a minute, and thousands of jobs take longer than that.
    for each in scene.jobs():
        with contextlib.suppress(RecursionError):
            scene.kubernetes.api.delete(f"{JOBS.format(scene.hostile)}/{each['metadata']['name']}")
    scene.kubernetes.wait_until(lambda: not scene.jobs(), "the jobs are gone")
    assert scene.operator.get("/healthz") == (200, "ok\n")
    assert "Traceback" not in scene.operator.log.read_text()
