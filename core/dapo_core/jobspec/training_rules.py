"""Rules between the fields that say what is trained and how: model, data, algorithm, batch and schedule."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from dapo_core.errors import Problem
from dapo_core.jobspec.algorithm import Algorithm
from dapo_core.jobspec.inputs import ALL_LINEAR, Data, Model
from dapo_core.jobspec.presets import PRESETS
from dapo_core.jobspec.rule_table import CelRule, RuleTable, or_default, or_preset, problem
from dapo_core.jobspec.topology import Topology
from dapo_core.jobspec.training import Batch, Schedule

RULES: Final = RuleTable()


@RULES.rule(
    "model",
    cel=CelRule(
        "spec.model",
        rule="!has(self.revision) || self.source.startsWith('hf://')",
        message="spec.model.revision is set but spec.model.source is not hf://: only hf:// sources have revisions, "
        "so remove it.",
        field_path=".revision",
    ),
)
def revision_of_hub(model: Model) -> Iterator[Problem]:
    if model.revision is not None and not model.source.startswith("hf://"):
        yield problem(
            "model.revision",
            f'is "{model.revision}" but spec.model.source is {model.source}: only hf:// sources have revisions, '
            "so remove it.",
        )


@RULES.rule(
    "model",
    cel=CelRule(
        "spec.model.lora",
        rule="!has(self.targetModules) || size(self.targetModules) == 1 || !('all-linear' in self.targetModules)",
        message="spec.model.lora.targetModules has all-linear beside names of layers, which it includes: keep one of "
        "the two.",
        field_path=".targetModules",
    ),
)
def all_linear_alone(model: Model) -> Iterator[Problem]:
    targets = model.lora.target_modules if model.lora is not None else ()
    if ALL_LINEAR in targets and len(targets) > 1:
        yield problem(
            "model.lora.targetModules",
            f"is {', '.join(targets)}, but all-linear includes every layer: keep all-linear or the names.",
        )


@RULES.rule(
    "data",
    cel=CelRule(
        "spec.data",
        rule="!has(self.validation) || self.validation.all(a, self.validation.exists_one(b, b.name == a.name))",
        message="spec.data.validation has two sets of the same name: give each set its own name.",
        field_path=".validation",
    ),
)
def unique_validation_names(data: Data) -> Iterator[Problem]:
    counts = Counter(item.name for item in data.validation)
    for index, item in enumerate(data.validation):
        first = next(i for i, other in enumerate(data.validation) if other.name == item.name)
        if counts[item.name] > 1 and index != first:
            yield problem(
                f"data.validation[{index}].name",
                f'is "{item.name}", which is also the name of spec.data.validation[{first}]: give each set its own '
                "name.",
            )


@RULES.rule(
    "data",
    cel=CelRule(
        "spec.data",
        rule="self.train.all(a, has(a.weight)) || self.train.all(a, !has(a.weight))",
        message="spec.data.train: some files have a weight and some have none: set it for all files or for none.",
        field_path=".train",
    ),
)
def weights_for_all(data: Data) -> Iterator[Problem]:
    if any(item.weight is not None for item in data.train):
        for index, item in enumerate(data.train):
            if item.weight is None:
                yield problem(
                    f"data.train[{index}].weight",
                    "is missing but other files of spec.data.train have a weight: set it for all files or for none.",
                )


@RULES.rule(
    "data",
    cel=CelRule(
        "spec.data.validation[]",
        rule="!has(self.temperature) || self.temperature > 0.0 "
        "|| (has(self.samplesPerPrompt) && self.samplesPerPrompt == 1)",
        message="spec.data.validation: temperature 0 makes all samples identical: set samplesPerPrompt to 1 or a "
        "temperature above 0.",
        field_path=".temperature",
    ),
)
def greedy_once(data: Data) -> Iterator[Problem]:
    for index, item in enumerate(data.validation):
        if item.temperature == 0 and item.samples_per_prompt > 1:
            yield problem(
                f"data.validation[{index}].temperature",
                f"is 0, which makes all {item.samples_per_prompt} samples identical: set samplesPerPrompt to 1 or a "
                "temperature above 0.",
            )


_PENALTY: Final = "self.algorithm.overlong.penalty"


@RULES.rule(
    "algorithm",
    "batch",
    cel=CelRule(
        "spec",
        rule=f"!has(self.algorithm) || !has(self.algorithm.overlong) || !has({_PENALTY}) "
        f"|| (has({_PENALTY}.enabled) && !{_PENALTY}.enabled) "
        f"|| {or_default(f'{_PENALTY}.expectedTokens', 0)} + {or_default(f'{_PENALTY}.cacheTokens', 1)} "
        f"<= (has(self.batch) ? {or_preset('batch', 'maxResponseTokens')} : "
        f"{PRESETS['dapo']['batch']['maxResponseTokens']})",
        message="spec.algorithm.overlong.penalty: expectedTokens + cacheTokens is more than "
        "spec.batch.maxResponseTokens (20480 by default): lower them so that their sum is at most that.",
    ),
)
def penalty_within_limit(algorithm: Algorithm, batch: Batch) -> Iterator[Problem]:
    penalty = algorithm.overlong.penalty
    if penalty is None:
        return
    total = penalty.expected_tokens + penalty.cache_tokens
    if total > batch.max_response_tokens:
        yield problem(
            "algorithm.overlong.penalty.expectedTokens",
            f"is {penalty.expected_tokens} and cacheTokens is {penalty.cache_tokens}, {total} in all, but "
            f"spec.batch.maxResponseTokens is {batch.max_response_tokens}: lower them so that their sum is at most "
            "that.",
        )


@RULES.rule(
    "algorithm",
    "batch",
    cel=CelRule(
        "spec",
        rule="!has(self.batch) || !has(self.batch.responsesPerPrompt) || self.batch.responsesPerPrompt >= 2 "
        "|| (has(self.algorithm) && (has(self.algorithm.dynamicSampling) "
        "&& has(self.algorithm.dynamicSampling.enabled) ? !self.algorithm.dynamicSampling.enabled : "
        "has(self.algorithm.preset) && self.algorithm.preset == 'grpo'))",
        message="spec.batch.responsesPerPrompt is 1 but dynamic sampling is enabled, and a group of one is always all "
        "correct or all incorrect: set it to 2 or more, or spec.algorithm.dynamicSampling.enabled to false.",
        field_path=".batch.responsesPerPrompt",
    ),
)
def groups_worth_comparing(algorithm: Algorithm, batch: Batch) -> Iterator[Problem]:
    if algorithm.dynamic_sampling.enabled and batch.responses_per_prompt < 2:
        yield problem(
            "batch.responsesPerPrompt",
            "is 1 but spec.algorithm.dynamicSampling.enabled is true, and a group of one is always all correct or all "
            "incorrect: set it to 2 or more, or enabled to false.",
        )


_ALL_TOKENS: Final = "!has(self.batch) || !has(self.batch.topP) || self.batch.topP >= 1.0"
_RENORMALIZED: Final = (
    "vLLM's probabilities are then those among the tokens that it samples from, and not comparable with the trainer's"
)


def _needs_all_tokens(field: str, value: str, used: Callable[[Algorithm], bool], unused: str, remedy: str) -> None:
    """Add the rule that the algorithm's `field`, which is `value`, needs topP 1. `unused`: CEL, true where it is not
    `used`."""
    remedies = f"Set topP to 1 or {remedy}."

    @RULES.rule(
        "algorithm",
        "batch",
        cel=CelRule(
            "spec",
            rule=f"{_ALL_TOKENS} || !has(self.algorithm) || {unused}",
            message=f"spec.algorithm.{field} is {value} but spec.batch.topP is less than 1: "
            f"{_RENORMALIZED}. {remedies}",
            field_path=f".algorithm.{field}",
        ),
    )
    def all_tokens(algorithm: Algorithm, batch: Batch) -> Iterator[Problem]:
        if used(algorithm) and batch.top_p < 1:
            yield problem(
                f"algorithm.{field}",
                f"is {value} but spec.batch.topP is {batch.top_p:g}: {_RENORMALIZED}. {remedies}",
            )


_needs_all_tokens(
    "oldLogProbs",
    "Rollout",
    lambda algorithm: algorithm.old_log_probs == "Rollout",
    "!has(self.algorithm.oldLogProbs) || self.algorithm.oldLogProbs != 'Rollout'",
    "oldLogProbs to Trainer",
)
_needs_all_tokens(
    "importanceCorrection",
    "set",
    lambda algorithm: algorithm.importance_correction is not None,
    "!has(self.algorithm.importanceCorrection)",
    "remove importanceCorrection",
)
_needs_all_tokens(
    "rolloutRejection",
    "set",
    lambda algorithm: algorithm.rollout_rejection is not None,
    "!has(self.algorithm.rolloutRejection)",
    "remove rolloutRejection",
)
_needs_all_tokens(
    "dynamicSampling.surplus",
    "Carry",
    lambda algorithm: algorithm.dynamic_sampling.surplus == "Carry",
    "!has(self.algorithm.dynamicSampling) "
    "|| !has(self.algorithm.dynamicSampling.surplus) || self.algorithm.dynamicSampling.surplus != 'Carry'",
    "surplus to Discard",
)


@RULES.rule(
    "algorithm",
    cel=CelRule(
        "spec.algorithm",
        rule="!has(self.oldLogProbs) || self.oldLogProbs != 'Rollout' "
        "|| (!has(self.importanceCorrection) && !has(self.rolloutRejection))",
        message="spec.algorithm.oldLogProbs is Rollout, which leaves out the trainer's log-probs that "
        "importanceCorrection and rolloutRejection compare with: set it to Trainer, or remove those.",
        field_path=".oldLogProbs",
    ),
)
def nothing_to_compare_with(algorithm: Algorithm) -> Iterator[Problem]:
    compared = {
        "importanceCorrection": algorithm.importance_correction,
        "rolloutRejection": algorithm.rollout_rejection,
    }
    used = [name for name, value in compared.items() if value is not None]
    if algorithm.old_log_probs == "Rollout" and used:
        yield problem(
            "algorithm.oldLogProbs",
            f"is Rollout, which leaves out the trainer's log-probs that {' and '.join(used)} would compare with: set "
            f"it to Trainer, or remove {' and '.join(used)}.",
        )


@RULES.rule(
    "algorithm",
    "topology",
    cel=CelRule(
        "spec",
        rule="!has(self.algorithm) || !has(self.algorithm.maxStaleness) "
        "|| (has(self.topology) && has(self.topology.mode) && self.topology.mode == 'Separated')",
        message="spec.algorithm.maxStaleness is set but spec.topology.mode is Colocated, where no group is older than "
        "dynamicSampling.surplus says: remove it.",
        field_path=".algorithm.maxStaleness",
    ),
)
def staleness_of_separated(algorithm: Algorithm, topology: Topology) -> Iterator[Problem]:
    if algorithm.max_staleness is not None and topology.mode != "Separated":
        yield problem(
            "algorithm.maxStaleness",
            f"is {algorithm.max_staleness} but spec.topology.mode is {topology.mode}, where no group is older than "
            "dynamicSampling.surplus says: remove it.",
        )


_PROMPTS, _GROUP = (or_preset("batch", field, "self") for field in ("prompts", "responsesPerPrompt"))


@RULES.rule(
    "batch",
    cel=CelRule(
        "spec.batch",
        rule=f"!has(self.miniBatchResponses) || self.miniBatchResponses % {_GROUP} == 0",
        message="spec.batch.miniBatchResponses must be a multiple of spec.batch.responsesPerPrompt (16 by default), "
        "so that no group is split between updates.",
        field_path=".miniBatchResponses",
    ),
)
def whole_groups(batch: Batch) -> Iterator[Problem]:
    if batch.mini_batch_responses % batch.responses_per_prompt:
        yield problem(
            "batch.miniBatchResponses",
            f"is {batch.mini_batch_responses} but spec.batch.responsesPerPrompt is {batch.responses_per_prompt}: "
            "set it to a multiple of that, so that no group is split between updates.",
        )


@RULES.rule(
    "batch",
    cel=CelRule(
        "spec.batch",
        rule=f"!has(self.miniBatchResponses) || {_PROMPTS} * {_GROUP} % self.miniBatchResponses == 0",
        message="spec.batch.miniBatchResponses must divide the responses of a step: "
        "spec.batch.prompts (512 by default) x responsesPerPrompt (16 by default).",
        field_path=".miniBatchResponses",
    ),
)
def whole_updates(batch: Batch) -> Iterator[Problem]:
    if batch.responses % batch.mini_batch_responses:
        yield problem(
            "batch.miniBatchResponses",
            f"is {batch.mini_batch_responses}, which does not divide the {batch.responses} responses of a step "
            f"(spec.batch.prompts {batch.prompts} x responsesPerPrompt {batch.responses_per_prompt}): "
            f"set it to {batch.responses} or a divisor of that.",
        )


_IN_TRAINER = "has(self.topology) && has(self.topology.trainer) &&"


@RULES.rule(
    "batch",
    "topology",
    cel=CelRule(
        "spec",
        rule="!has(self.batch) || !has(self.batch.miniBatchResponses) || self.batch.miniBatchResponses % "
        f"(({_IN_TRAINER} has(self.topology.trainer.replicas) ? self.topology.trainer.replicas : 1) * "
        f"({_IN_TRAINER} has(self.topology.trainer.gpusPerPod) && self.topology.trainer.gpusPerPod > 0 ? "
        "self.topology.trainer.gpusPerPod : 1)) == 0",
        message="spec.batch.miniBatchResponses must be a multiple of the number of FSDP ranks "
        "(spec.topology.trainer.replicas x gpusPerPod), so that each rank gets the same number of responses.",
        field_path=".batch.miniBatchResponses",
    ),
)
def even_ranks(batch: Batch, topology: Topology) -> Iterator[Problem]:
    ranks = topology.layout.fsdp_ranks
    if batch.mini_batch_responses % ranks:
        yield problem(
            "batch.miniBatchResponses",
            f"is {batch.mini_batch_responses} but spec.topology.trainer has {ranks} FSDP ranks: "
            f"set it to a multiple of {ranks}, so that each rank gets the same number of responses.",
        )


@RULES.rule(
    "schedule",
    cel=CelRule(
        "spec.schedule",
        rule="!(has(self.steps) && has(self.epochs))",
        message="spec.schedule.steps and spec.schedule.epochs are both set: keep one of the two.",
        field_path=".steps",
    ),
)
def one_length(schedule: Schedule) -> Iterator[Problem]:
    if schedule.steps is not None and schedule.epochs is not None:
        yield problem(
            "schedule.steps",
            f"is {schedule.steps} but spec.schedule.epochs is {schedule.epochs}: keep one of the two.",
        )
