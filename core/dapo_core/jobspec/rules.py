"""Rules between fields, each a function of the groups it needs, so that one broken group hides no other's mistakes."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dapo_core.errors import Problem
from dapo_core.jobspec.algorithm import Algorithm
from dapo_core.jobspec.guards import Guard
from dapo_core.jobspec.inputs import Data, Model, Reward
from dapo_core.jobspec.operations import Checkpoints, RunPolicy
from dapo_core.jobspec.topology import Topology
from dapo_core.jobspec.training import Batch, Schedule

Rule = Callable[..., Iterator[Problem]]


def check(groups: Mapping[str, Any]) -> list[Problem]:
    """Problems between the fields of those groups that are there (keys are the spec's Python names)."""
    return [problem for rule, needs in _RULES if needs <= groups.keys() for problem in _run(rule, needs, groups)]


def _run(rule: Rule, needs: frozenset[str], groups: Mapping[str, Any]) -> Iterator[Problem]:
    return rule(**{name: groups[name] for name in needs})


def _problem(field: str, sentence: str) -> Problem:
    return Problem(f"spec.{field}", f"spec.{field} {sentence}")


def revision_of_hub(model: Model) -> Iterator[Problem]:
    if model.revision is not None and not model.source.startswith("hf://"):
        yield _problem(
            "model.revision",
            f'is "{model.revision}" but spec.model.source is {model.source}: only hf:// sources have revisions, '
            "so remove it.",
        )


def unique_validation_names(data: Data) -> Iterator[Problem]:
    counts = Counter(item.name for item in data.validation)
    for index, item in enumerate(data.validation):
        first = next(i for i, other in enumerate(data.validation) if other.name == item.name)
        if counts[item.name] > 1 and index != first:
            yield _problem(
                f"data.validation[{index}].name",
                f'is "{item.name}", which spec.data.validation[{first}] is already called: give each set its own name.',
            )


def greedy_once(data: Data) -> Iterator[Problem]:
    for index, item in enumerate(data.validation):
        if item.temperature == 0 and item.samples_per_prompt > 1:
            yield _problem(
                f"data.validation[{index}].temperature",
                f"is 0, which makes all {item.samples_per_prompt} samples alike: set samplesPerPrompt to 1 or a "
                "temperature above 0.",
            )


def custom_module(reward: Reward) -> Iterator[Problem]:
    if reward.type == "custom" and reward.module is None:
        yield _problem(
            "reward.module", "is missing but spec.reward.type is custom: name it as package.module:function."
        )
    if reward.type != "custom" and reward.module is not None:
        yield _problem(
            "reward.module",
            f'is "{reward.module}" but spec.reward.type is {reward.type}: set spec.reward.type to custom or remove it.',
        )


def clip_order(algorithm: Algorithm) -> Iterator[Problem]:
    if algorithm.clip_low > algorithm.clip_high:
        yield _problem(
            "algorithm.clipLow",
            f"is {algorithm.clip_low:g} but spec.algorithm.clipHigh is {algorithm.clip_high:g}: "
            "set clipLow to at most clipHigh.",
        )


def penalty_within_limit(algorithm: Algorithm, batch: Batch) -> Iterator[Problem]:
    penalty = algorithm.overlong.penalty
    if penalty is None:
        return
    total = penalty.expected_tokens + penalty.cache_tokens
    if total > batch.max_response_tokens:
        yield _problem(
            "algorithm.overlong.penalty.expectedTokens",
            f"is {penalty.expected_tokens} and with cacheTokens {penalty.cache_tokens} makes {total}, but "
            f"spec.batch.maxResponseTokens is {batch.max_response_tokens}: lower them to at most that together.",
        )


def groups_worth_comparing(algorithm: Algorithm, batch: Batch) -> Iterator[Problem]:
    if algorithm.dynamic_sampling.enabled and batch.responses_per_prompt < 2:
        yield _problem(
            "batch.responsesPerPrompt",
            "is 1 but spec.algorithm.dynamicSampling.enabled is true, and a group of one is always all right or all "
            "wrong: set it to 2 or more, or enabled to false.",
        )


def whole_groups(batch: Batch) -> Iterator[Problem]:
    if batch.mini_batch_responses % batch.responses_per_prompt:
        yield _problem(
            "batch.miniBatchResponses",
            f"is {batch.mini_batch_responses} but spec.batch.responsesPerPrompt is {batch.responses_per_prompt}: "
            "set it to a multiple of that, so that no group is torn apart.",
        )


def whole_updates(batch: Batch) -> Iterator[Problem]:
    if batch.responses % batch.mini_batch_responses:
        yield _problem(
            "batch.miniBatchResponses",
            f"is {batch.mini_batch_responses}, which does not divide the {batch.responses} responses of a step "
            f"(spec.batch.prompts {batch.prompts} x responsesPerPrompt {batch.responses_per_prompt}): "
            f"set it to {batch.responses} or a number that divides it.",
        )


def even_ranks(batch: Batch, topology: Topology) -> Iterator[Problem]:
    ranks = topology.layout.fsdp_ranks
    if batch.mini_batch_responses % ranks:
        yield _problem(
            "batch.miniBatchResponses",
            f"is {batch.mini_batch_responses} but spec.topology.trainer makes {ranks} FSDP ranks: "
            f"set it to a multiple of {ranks}, so that each rank gets as many responses.",
        )


def one_length(schedule: Schedule) -> Iterator[Problem]:
    if schedule.steps is not None and schedule.epochs is not None:
        yield _problem(
            "schedule.steps",
            f"is {schedule.steps} but spec.schedule.epochs is {schedule.epochs}: keep one of the two.",
        )


def engines_fit(topology: Topology) -> Iterator[Problem]:
    parallel = topology.rollout.tensor_parallel
    pods, role = (topology.trainer, "trainer") if topology.mode == "Colocated" else (topology.rollout, "rollout")
    gpus = pods.gpus_per_pod
    if gpus == 0 and parallel > 1:
        yield _problem(
            "topology.rollout.tensorParallel",
            f"is {parallel} but spec.topology.{role}.gpusPerPod is 0: set it to 1, since pods without GPUs hold one "
            "engine each.",
        )
    elif gpus and (pods.replicas * gpus % parallel or (gpus % parallel and parallel % gpus)):
        yield _problem(
            "topology.rollout.tensorParallel",
            f"is {parallel}, over which {pods.replicas} {role} pods of {gpus} GPUs can't be divided: set it to a "
            f"number that divides {gpus}, or to whole pods that divide all {pods.replicas * gpus}.",
        )


def best_of_something(checkpoints: Checkpoints, data: Data) -> Iterator[Problem]:
    if checkpoints.keep_best and not data.validation:
        yield _problem(
            "checkpoints.keepBest",
            f"is {checkpoints.keep_best} but spec.data.validation is empty, so no checkpoint can be called best: "
            "add a validation set or set it to 0.",
        )


def known_metric(checkpoints: Checkpoints, data: Data) -> Iterator[Problem]:
    metric = checkpoints.best_metric
    if metric is None or not data.validation:
        return
    _, name, _, statistic = metric.split("/")
    found = next((item for item in data.validation if item.name == name), None)
    if found is None:
        names = ", ".join(item.name for item in data.validation)
        yield _problem(
            "checkpoints.bestMetric", f'is "{metric}" but the validation sets are {names}: name one of them.'
        )
    elif int(statistic.partition("@")[2]) > found.samples_per_prompt:
        yield _problem(
            "checkpoints.bestMetric",
            f'is "{metric}" but "{name}" has samplesPerPrompt {found.samples_per_prompt}: '
            f"write @{found.samples_per_prompt} or less.",
        )


def growing_backoff(run_policy: RunPolicy) -> Iterator[Problem]:
    if run_policy.backoff_max_seconds < run_policy.backoff_seconds:
        yield _problem(
            "runPolicy.backoffMaxSeconds",
            f"is {run_policy.backoff_max_seconds} but spec.runPolicy.backoffSeconds is {run_policy.backoff_seconds}: "
            "set it to at least that.",
        )


def kueue_queue(run_policy: RunPolicy) -> Iterator[Problem]:
    if run_policy.gang.scheduler == "kueue" and run_policy.gang.queue is None:
        yield _problem(
            "runPolicy.gang.queue", "is missing but spec.runPolicy.gang.scheduler is kueue: name a LocalQueue."
        )


def counted_restarts(run_policy: RunPolicy) -> Iterator[Problem]:
    for index, rule in enumerate(run_policy.failure_rules):
        if not rule.counted and rule.action != "Restart":
            yield _problem(
                f"runPolicy.failureRules[{index}].counted",
                f"is false but the rule's action is {rule.action}: only restarts are counted, so remove it.",
            )


def one_guard_a_rule(guards: tuple[Guard, ...]) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for index, guard in enumerate(guards):
        if guard.rule in seen:
            yield _problem(
                f"guards[{index}].rule",
                f"is {guard.rule}, which spec.guards[{seen[guard.rule]}] has already: keep one of the two.",
            )
        seen.setdefault(guard.rule, index)


def _needs(rule: Rule) -> frozenset[str]:
    return frozenset(inspect.signature(rule).parameters)


_RULES: list[tuple[Rule, frozenset[str]]] = [
    (rule, _needs(rule))
    for rule in (
        revision_of_hub,
        unique_validation_names,
        greedy_once,
        custom_module,
        clip_order,
        penalty_within_limit,
        groups_worth_comparing,
        whole_groups,
        whole_updates,
        even_ranks,
        one_length,
        engines_fit,
        best_of_something,
        known_metric,
        growing_backoff,
        kueue_queue,
        counted_restarts,
        one_guard_a_rule,
    )
]
