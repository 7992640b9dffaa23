"""Rules between the fields that say how a job runs: topology, checkpoints, runPolicy and guards."""

from collections.abc import Iterator
from typing import Final

from dapo_core.errors import Problem
from dapo_core.jobspec.guard_fields import Guard
from dapo_core.jobspec.inputs import Data
from dapo_core.jobspec.operations import Checkpoints, RunPolicy, TrackerName
from dapo_core.jobspec.rule_table import CelRule, RuleTable, or_default, problem
from dapo_core.jobspec.topology import Topology
from dapo_core.naming import ROLES

RULES: Final = RuleTable()

_PARALLEL: Final = "self.rollout.tensorParallel"


def _fits(pods: str, gpus: str) -> str:
    whole = f"({gpus} % {_PARALLEL} == 0 || {_PARALLEL} % {gpus} == 0) && {pods} * {gpus} % {_PARALLEL} == 0"
    return f"({gpus} == 0 ? {_PARALLEL} == 1 : {whole})"


_ROLLOUT_FITS = _fits(*(or_default(f"self.rollout.{field}", 1) for field in ("replicas", "gpusPerPod")))
_TRAINER_FITS = _fits(
    *(
        f"(has(self.trainer) && has(self.trainer.{field}) ? self.trainer.{field} : 1)"
        for field in ("replicas", "gpusPerPod")
    )
)


@RULES.rule(
    "topology",
    cel=CelRule(
        "spec.topology",
        rule=f"!has(self.rollout) || !has({_PARALLEL}) || "
        f"((has(self.mode) && self.mode == 'Separated') ? {_ROLLOUT_FITS} : {_TRAINER_FITS})",
        message="spec.topology.rollout.tensorParallel must divide the GPUs of one pod, or be a multiple of them that "
        "divides all GPUs (of spec.topology.trainer when Colocated, of rollout when Separated); without GPUs it is 1.",
        field_path=".rollout.tensorParallel",
    ),
)
def engines_fit(topology: Topology) -> Iterator[Problem]:
    parallel = topology.rollout.tensor_parallel
    pods, role = (topology.trainer, "trainer") if topology.mode == "Colocated" else (topology.rollout, "rollout")
    gpus = pods.gpus_per_pod
    if gpus == 0 and parallel > 1:
        yield problem(
            "topology.rollout.tensorParallel",
            f"is {parallel} but spec.topology.{role}.gpusPerPod is 0: set it to 1, because a pod without GPUs holds "
            "one engine.",
        )
    elif gpus and (pods.replicas * gpus % parallel or (gpus % parallel and parallel % gpus)):
        yield problem(
            "topology.rollout.tensorParallel",
            f"is {parallel}, which does not fit {pods.replicas} {role} pods of {gpus} GPUs: set it to a divisor of "
            f"{gpus}, or to a multiple of {gpus} that divides all {pods.replicas * gpus}.",
        )


@RULES.rule(
    "topology",
    cel=CelRule(
        "spec.topology.rollout",
        rule=f"!has(self.minReplicas) || self.minReplicas <= {or_default('self.replicas', 1)}",
        message="spec.topology.rollout.minReplicas is more than replicas, so that no attempt could start: lower it, or "
        "raise replicas.",
        field_path=".minReplicas",
    ),
)
def enough_rollouts(topology: Topology) -> Iterator[Problem]:
    least, replicas = topology.rollout.min_replicas, topology.rollout.replicas
    if least is not None and least > replicas:
        yield problem(
            "topology.rollout.minReplicas",
            f"is {least} but replicas is {replicas}, so that no attempt could start: lower it, or raise replicas.",
        )


@RULES.rule(
    "topology",
    cel=CelRule(
        "spec.topology.rollout",
        rule=f"!has(self.maxReplicas) || self.maxReplicas >= {or_default('self.replicas', 1)}",
        message="spec.topology.rollout.replicas is more than maxReplicas: lower it, or raise maxReplicas.",
        field_path=".replicas",
    ),
)
def not_too_many_rollouts(topology: Topology) -> Iterator[Problem]:
    most, replicas = topology.rollout.max_replicas, topology.rollout.replicas
    if most is not None and replicas > most:
        yield problem(
            "topology.rollout.replicas",
            f"is {replicas} but maxReplicas is {most}: lower it, or raise maxReplicas.",
        )


_OF_ROLLOUT_PODS: Final = {
    "minReplicas": "min_replicas",
    "maxReplicas": "max_replicas",
    "priorityClassName": "priority_class_name",
}


@RULES.rule(
    "topology",
    cel=CelRule(
        "spec.topology",
        rule="(has(self.mode) && self.mode == 'Separated') || !has(self.rollout) || "
        f"!({' || '.join(f'has(self.rollout.{field})' for field in _OF_ROLLOUT_PODS)})",
        message="spec.topology.rollout: minReplicas, maxReplicas and priorityClassName are about rollout pods, which "
        "spec.topology.mode Colocated does not have: remove them, or set mode to Separated.",
        field_path=".rollout",
    ),
)
def rollout_pods_of_separated(topology: Topology) -> Iterator[Problem]:
    if topology.mode == "Separated":
        return
    for field, attribute in _OF_ROLLOUT_PODS.items():
        if (value := getattr(topology.rollout, attribute)) is not None:
            yield problem(
                f"topology.rollout.{field}",
                f"is {value} but spec.topology.mode is {topology.mode}, which has no rollout pods: remove it, or set "
                "mode to Separated.",
            )


def _one_place(role: str) -> None:
    """At most one of the places that a role's scratch may have."""
    fields = ("storageClassName", "hostPath", "medium")
    count = " + ".join(f"(has(self.{field}) ? 1 : 0)" for field in fields)
    sentence = "names several of storageClassName, hostPath and medium: keep one"

    @RULES.rule(
        "topology",
        cel=CelRule(
            f"spec.topology.{role}.scratch",
            rule=f"{count} <= 1",
            message=f"spec.topology.{role}.scratch {sentence}.",
        ),
    )
    def one_place(topology: Topology) -> Iterator[Problem]:
        disks = {
            "head": topology.head.scratch,
            "trainer": topology.trainer.scratch,
            "rollout": topology.rollout.scratch,
        }
        scratch = disks[role]
        if scratch is None:
            return
        found = [scratch.storage_class_name, scratch.host_path, scratch.medium]
        if sum(place is not None for place in found) > 1:
            yield problem(f"topology.{role}.scratch", f"{sentence}.")


for _role in ROLES:
    _one_place(_role)


@RULES.rule(
    "topology",
    cel=CelRule(
        "spec.topology.modelCache",
        rule=f"{' + '.join(f'(has(self.{field}) ? 1 : 0)' for field in ('hostPath', 'claim', 'image'))} == 1",
        message="spec.topology.modelCache needs exactly one of hostPath, claim and image.",
    ),
)
def one_cache(topology: Topology) -> Iterator[Problem]:
    cache = topology.model_cache
    if cache is not None and [cache.host_path, cache.claim, cache.image].count(None) != 2:
        yield problem("topology.modelCache", "needs exactly one of hostPath, claim and image.")


@RULES.rule(
    "checkpoints",
    "data",
    cel=CelRule(
        "spec",
        rule="!has(self.checkpoints) || !has(self.checkpoints.keepBest) || self.checkpoints.keepBest == 0 "
        "|| (has(self.data.validation) && size(self.data.validation) > 0)",
        message="spec.checkpoints.keepBest needs a validation set by which to compare checkpoints: add one to "
        "spec.data.validation or set keepBest to 0.",
        field_path=".checkpoints.keepBest",
    ),
)
def best_of_something(checkpoints: Checkpoints, data: Data) -> Iterator[Problem]:
    if checkpoints.keep_best and not data.validation:
        yield problem(
            "checkpoints.keepBest",
            f"is {checkpoints.keep_best} but spec.data.validation is empty, so there is no metric by which to compare "
            "checkpoints: add a validation set or set it to 0.",
        )


@RULES.rule("checkpoints", "data", cel=None)
def known_metric(checkpoints: Checkpoints, data: Data) -> Iterator[Problem]:
    metric = checkpoints.best_metric
    if metric is None or not data.validation:
        return
    _, name, _, statistic = metric.split("/")
    named = next((item for item in data.validation if item.name == name), None)
    if named is None:
        names = ", ".join(item.name for item in data.validation)
        yield problem("checkpoints.bestMetric", f'is "{metric}" but the validation sets are {names}: use one of them.')
    elif int(statistic.partition("@")[2]) != named.samples_per_prompt:
        # Validation computes its figures over all samples; there is no mean@4 of 32 samples.
        yield problem(
            "checkpoints.bestMetric",
            f'is "{metric}" but "{name}" has samplesPerPrompt {named.samples_per_prompt}: '
            f"use @{named.samples_per_prompt}.",
        )


@RULES.rule(
    "run_policy",
    cel=CelRule(
        "spec.runPolicy",
        rule=f"{or_default('self.backoffSeconds', 10)} <= {or_default('self.backoffMaxSeconds', 600)}",
        message="spec.runPolicy.backoffMaxSeconds is less than backoffSeconds: set it to at least that.",
        field_path=".backoffMaxSeconds",
    ),
)
def growing_backoff(run_policy: RunPolicy) -> Iterator[Problem]:
    if run_policy.backoff_max_seconds < run_policy.backoff_seconds:
        yield problem(
            "runPolicy.backoffMaxSeconds",
            f"is {run_policy.backoff_max_seconds} but spec.runPolicy.backoffSeconds is {run_policy.backoff_seconds}: "
            "set it to at least that.",
        )


@RULES.rule(
    "run_policy",
    cel=CelRule(
        "spec.runPolicy.gang",
        rule="!(has(self.scheduler) && self.scheduler == 'kueue') || has(self.queue)",
        message="spec.runPolicy.gang.queue is missing but its scheduler is kueue: set it to a LocalQueue.",
        field_path=".queue",
    ),
)
def kueue_queue(run_policy: RunPolicy) -> Iterator[Problem]:
    if run_policy.gang.scheduler == "kueue" and run_policy.gang.queue is None:
        yield problem(
            "runPolicy.gang.queue", "is missing but spec.runPolicy.gang.scheduler is kueue: set it to a LocalQueue."
        )


@RULES.rule(
    "run_policy",
    cel=CelRule(
        "spec.runPolicy.failureRules[]",
        rule="!has(self.counted) || self.counted || self.action == 'Restart'",
        message="spec.runPolicy.failureRules: only restarts are counted: "
        "remove counted from a rule whose action is not Restart.",
        field_path=".counted",
    ),
)
def counted_restarts(run_policy: RunPolicy) -> Iterator[Problem]:
    for index, failure_rule in enumerate(run_policy.failure_rules):
        if not failure_rule.counted and failure_rule.action != "Restart":
            yield problem(
                f"runPolicy.failureRules[{index}].counted",
                f"is false but the rule's action is {failure_rule.action}: only restarts are counted, so remove it.",
            )


@RULES.rule(
    "guards",
    cel=CelRule(
        "spec",
        rule="!has(self.guards) || self.guards.all(a, self.guards.exists_one(b, b.rule == a.rule))",
        message="spec.guards has two guards with the same rule: keep one of the two.",
        field_path=".guards",
    ),
)
def one_guard_per_rule(guards: tuple[Guard, ...]) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for index, guard in enumerate(guards):
        if guard.rule in seen:
            yield problem(
                f"guards[{index}].rule",
                f"is {guard.rule}, as in spec.guards[{seen[guard.rule]}]: keep one of the two.",
            )
        seen.setdefault(guard.rule, index)


@RULES.rule(
    "trackers",
    cel=CelRule(
        "spec",
        rule="!has(self.trackers) || self.trackers.all(a, self.trackers.exists_one(b, b == a))",
        message="spec.trackers names a tracker twice: name each once.",
        field_path=".trackers",
    ),
)
def trackers_once(trackers: tuple[TrackerName, ...]) -> Iterator[Problem]:
    for index, name in enumerate(trackers):
        if name in trackers[:index]:
            yield problem(f"trackers[{index}]", f"is {name}, which the list has already: name each tracker once.")
