"""Another version of the platform takes over from the one that created a run: another image, other defaults."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fake_kube import FakeKube
from planner_bench import Bench
from simulated_operator import Operator

from dapo_core.jobspec import DAPOJob, DAPOJobSpec, RunPolicy
from dapo_core.jobspec.base import SpecModel
from dapo_operator.jobs.actions import CreatePod
from dapo_operator.jobs.job_objects import Site

NEW = Site(image="trainer:2", image_pull_policy="Always", topology_key="rack")
# A job with a group whose defaults `newer_defaults` changes.
NAMED: dict[str, Any] = {"runPolicy": {"backoffSeconds": 1}}


def upgraded(bench: Bench, site: Site = NEW) -> Bench:
    """Another version of the operator takes over."""
    bench.site = site
    bench._jobs.clear()
    return bench


@contextmanager
def newer_defaults() -> Iterator[None]:
    """A version of the platform in which pods have another grace period by default."""
    models: tuple[type[SpecModel], ...] = (RunPolicy, DAPOJobSpec, DAPOJob)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RunPolicy.model_fields["grace_period_seconds"], "default", 7)
            for model in models:
                model.model_rebuild(force=True)
            yield
    finally:
        for model in models:
            model.model_rebuild(force=True)


def crashed(bench: Bench) -> Bench:
    """The attempt has crashed, and the next one is about to start."""
    bench.finish("first-head-1-0", 1).settle()
    bench.now += 60
    return bench


def images(bench: Bench) -> set[str]:
    """Those of the pods of the next plan."""
    pods = [action.body for action in bench.look().actions if isinstance(action, CreatePod)]
    return {container["image"] for body in pods for container in body["spec"]["containers"]}


def work_until_created(kube: FakeKube, operator: Operator, attempt: int, pods: int = 3) -> None:
    """Until the attempt has its pods."""
    for _ in range(400):
        operator.pass_time(5)
        own = [pod for pod in kube.of_kind("Pod") if pod["metadata"]["labels"]["dapo.io/attempt"] == str(attempt)]
        if len(own) == pods:
            return
    raise AssertionError([job["status"] for job in kube.of_kind("DAPOJob")])
