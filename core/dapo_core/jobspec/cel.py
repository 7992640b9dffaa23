"""The rules of `rules.py` and immutability in CEL, so that the API server refuses a bad job at `kubectl apply`.

The API server sees the file, not what a preset fills in: a rule either stands in the preset's value or asks `has()`.
Rules that need the validation sets by name, or a number that follows from others, are left to `dapo plan` and the
operator. Each rule belongs to the smallest object that holds all of its fields.
"""

from dataclasses import dataclass
from typing import Any, Final

from dapo_core.jobspec.presets import PRESETS
from dapo_core.naming import MAX_JOB_NAME, NAME_PATTERN


@dataclass(frozen=True)
class CelRule:
    """One x-kubernetes-validations entry. The message is fixed: the API server holds one that is made from numbers,
    which may be of any length as text, for far beyond its cost budget."""

    rule: str
    message: str
    field_path: str | None = None
    reason: str = "FieldValueInvalid"

    def entry(self) -> dict[str, Any]:
        """As it stands in the CRD."""
        values = {
            "rule": self.rule,
            "message": self.message,
            "fieldPath": self.field_path,
            "reason": self.reason,
        }
        return {key: value for key, value in values.items() if value is not None}


def preset_value(group: str, field: str, holder: str | None = None) -> str:
    """CEL for a field's value: what the file says, else what the preset says. `holder` is how CEL names the group,
    which for a field that differs between presets has to be the algorithm's own."""
    here = f"{holder or f'self.{group}'}.{field}"
    dapo, grpo = PRESETS["dapo"][group][field], PRESETS["grpo"][group][field]
    otherwise = f"{dapo}" if dapo == grpo else f"(has(self.preset) && self.preset == 'grpo' ? {grpo} : {dapo})"
    return f"(has({here}) ? {here} : {otherwise})"


_LIMIT: Final = PRESETS["dapo"]["batch"]["maxResponseTokens"]
_PENALTY: Final = "self.algorithm.overlong.penalty"
_PROMPTS, _GROUP = (preset_value("batch", field, "self") for field in ("prompts", "responsesPerPrompt"))
_LOW, _HIGH = (preset_value("algorithm", field, "self") for field in ("clipLow", "clipHigh"))
_TRAINER_PODS = "(has(self.trainer) && has(self.trainer.replicas) ? self.trainer.replicas : 1)"
_TRAINER_GPUS = "(has(self.trainer) && has(self.trainer.gpusPerPod) ? self.trainer.gpusPerPod : 1)"
_ROLLOUT_PODS = "(has(self.rollout.replicas) ? self.rollout.replicas : 1)"
_ROLLOUT_GPUS = "(has(self.rollout.gpusPerPod) ? self.rollout.gpusPerPod : 1)"
_SEPARATED = "(has(self.mode) && self.mode == 'Separated')"
_PARALLEL = "self.rollout.tensorParallel"
_NO_PARALLEL = f"!has(self.rollout) || !has({_PARALLEL})"


def _fits(pods: str, gpus: str) -> str:
    whole = f"({gpus} % {_PARALLEL} == 0 || {_PARALLEL} % {gpus} == 0) && {pods} * {gpus} % {_PARALLEL} == 0"
    return f"({gpus} == 0 ? {_PARALLEL} == 1 : {whole})"


def _unchanged(field: str, why: str) -> CelRule:
    return CelRule(
        rule=f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})",
        message=f"spec.{field} can't be changed, because {why}: make a new job, with "
        "spec.checkpoints.resumeFrom set to this one's run to start from its weights.",
        field_path=f".{field}",
        reason="FieldValueForbidden",
    )


_WHAT_IS_LEARNED = "checkpoints of this run were trained with the old value"

ROOT_RULES: Final = [
    CelRule(
        rule=f"size(self.metadata.name) <= {MAX_JOB_NAME} && self.metadata.name.matches('{NAME_PATTERN}')",
        message=f"metadata.name must have at most {MAX_JOB_NAME} lower-case letters, digits and dashes, a letter "
        "first, so that the names of its pods fit Kubernetes' limit.",
    ),
]

# Rules by the dotted path of their object under the root; [] stands for the entries of a list.
RULES: Final[dict[str, list[CelRule]]] = {
    "spec": [
        CelRule(
            rule="has(self.managedBy) == has(oldSelf.managedBy) "
            "&& (!has(self.managedBy) || self.managedBy == oldSelf.managedBy)",
            message="spec.managedBy can't be changed, because two controllers would own one job: make a new job.",
            field_path=".managedBy",
            reason="FieldValueForbidden",
        ),
        *(
            _unchanged(field, _WHAT_IS_LEARNED)
            for field in ("model", "data", "reward", "algorithm", "optimizer", "batch", "verlOverrides")
        ),
        CelRule(
            rule=f"!has(self.algorithm) || !has(self.algorithm.overlong) || !has({_PENALTY}) "
            f"|| (has({_PENALTY}.enabled) && !{_PENALTY}.enabled) "
            f"|| (has({_PENALTY}.expectedTokens) ? {_PENALTY}.expectedTokens : 0) "
            f"+ (has({_PENALTY}.cacheTokens) ? {_PENALTY}.cacheTokens : 1) "
            f"<= (has(self.batch) ? {preset_value('batch', 'maxResponseTokens')} : {_LIMIT})",
            message="spec.algorithm.overlong.penalty: expectedTokens + cacheTokens is more than "
            "spec.batch.maxResponseTokens (20480 by default): lower them to at most that together.",
        ),
        CelRule(
            rule="!has(self.batch) || !has(self.batch.responsesPerPrompt) || self.batch.responsesPerPrompt >= 2 "
            "|| (has(self.algorithm) && (has(self.algorithm.dynamicSampling) "
            "&& has(self.algorithm.dynamicSampling.enabled) ? !self.algorithm.dynamicSampling.enabled : "
            "has(self.algorithm.preset) && self.algorithm.preset == 'grpo'))",
            message="spec.batch.responsesPerPrompt is 1 but dynamic sampling is on, and a group of one is always all "
            "right or all wrong: set it to 2 or more, or spec.algorithm.dynamicSampling.enabled to false.",
            field_path=".batch.responsesPerPrompt",
        ),
        CelRule(
            rule="!has(self.batch) || !has(self.batch.miniBatchResponses) || self.batch.miniBatchResponses % "
            "((has(self.topology) && has(self.topology.trainer) && has(self.topology.trainer.replicas) ? "
            "self.topology.trainer.replicas : 1) * (has(self.topology) && has(self.topology.trainer) && "
            "has(self.topology.trainer.gpusPerPod) && self.topology.trainer.gpusPerPod > 0 ? "
            "self.topology.trainer.gpusPerPod : 1)) == 0",
            message="spec.batch.miniBatchResponses must be a multiple of the FSDP ranks "
            "(spec.topology.trainer.replicas x gpusPerPod), so that each rank gets as many responses.",
            field_path=".batch.miniBatchResponses",
        ),
        CelRule(
            rule="!has(self.guards) || self.guards.all(a, self.guards.exists_one(b, b.rule == a.rule))",
            message="spec.guards has two guards of one rule: keep one of the two.",
            field_path=".guards",
        ),
        CelRule(
            rule="!has(self.checkpoints) || !has(self.checkpoints.keepBest) || self.checkpoints.keepBest == 0 "
            "|| (has(self.data.validation) && size(self.data.validation) > 0)",
            message="spec.checkpoints.keepBest needs a validation set to compare checkpoints by: add one to "
            "spec.data.validation or set keepBest to 0.",
            field_path=".checkpoints.keepBest",
        ),
    ],
    "spec.model": [
        CelRule(
            rule="!has(self.revision) || self.source.startsWith('hf://')",
            message="spec.model.revision is set but spec.model.source is not hf://: only those have revisions, "
            "so remove it.",
            field_path=".revision",
        ),
    ],
    "spec.data": [
        CelRule(
            rule="!has(self.validation) || self.validation.all(a, self.validation.exists_one(b, b.name == a.name))",
            message="spec.data.validation has two sets of one name: give each set its own.",
            field_path=".validation",
        ),
    ],
    "spec.data.validation[]": [
        CelRule(
            rule="!has(self.temperature) || self.temperature > 0.0 "
            "|| (has(self.samplesPerPrompt) && self.samplesPerPrompt == 1)",
            message="spec.data.validation: temperature 0 makes all samples alike: "
            "set samplesPerPrompt to 1 or a temperature above 0.",
            field_path=".temperature",
        ),
    ],
    "spec.reward": [
        CelRule(
            rule="(has(self.type) && self.type == 'custom') == has(self.module)",
            message="spec.reward.module (package.module:function) goes with spec.reward.type custom, and only with it: "
            "set both or neither.",
            field_path=".module",
        ),
    ],
    "spec.algorithm": [
        CelRule(
            rule=f"{_LOW} <= {_HIGH}",
            message="spec.algorithm.clipLow is more than spec.algorithm.clipHigh "
            f"({PRESETS['dapo']['algorithm']['clipHigh']:g} with preset dapo, "
            f"{PRESETS['grpo']['algorithm']['clipHigh']:g} with grpo): set clipLow to at most clipHigh.",
            field_path=".clipLow",
        ),
    ],
    "spec.batch": [
        CelRule(
            rule=f"!has(self.miniBatchResponses) || self.miniBatchResponses % {_GROUP} == 0",
            message="spec.batch.miniBatchResponses must be a multiple of spec.batch.responsesPerPrompt "
            "(16 by default), so that no group is torn apart.",
            field_path=".miniBatchResponses",
        ),
        CelRule(
            rule=f"!has(self.miniBatchResponses) || {_PROMPTS} * {_GROUP} % self.miniBatchResponses == 0",
            message="spec.batch.miniBatchResponses must divide the responses of a step: "
            "spec.batch.prompts (512 by default) x responsesPerPrompt (16 by default).",
            field_path=".miniBatchResponses",
        ),
    ],
    "spec.schedule": [
        CelRule(
            rule="!(has(self.steps) && has(self.epochs))",
            message="spec.schedule.steps and spec.schedule.epochs are both set: keep one of the two.",
            field_path=".steps",
        ),
    ],
    "spec.topology": [
        CelRule(
            rule=f"{_NO_PARALLEL} || ({_SEPARATED} ? {_fits(_ROLLOUT_PODS, _ROLLOUT_GPUS)} : "
            f"{_fits(_TRAINER_PODS, _TRAINER_GPUS)})",
            message="spec.topology.rollout.tensorParallel must divide the GPUs of a pod, or be whole pods that divide "
            "all GPUs (of spec.topology.trainer when Colocated, else of rollout); without GPUs it is 1.",
            field_path=".rollout.tensorParallel",
        ),
    ],
    "spec.runPolicy": [
        CelRule(
            rule="(has(self.backoffSeconds) ? self.backoffSeconds : 10) <= "
            "(has(self.backoffMaxSeconds) ? self.backoffMaxSeconds : 600)",
            message="spec.runPolicy.backoffMaxSeconds is less than backoffSeconds: set it to at least that.",
            field_path=".backoffMaxSeconds",
        ),
    ],
    "spec.runPolicy.gang": [
        CelRule(
            rule="!(has(self.scheduler) && self.scheduler == 'kueue') || has(self.queue)",
            message="spec.runPolicy.gang.queue is missing but its scheduler is kueue: name a LocalQueue.",
            field_path=".queue",
        ),
    ],
    "spec.runPolicy.failureRules[]": [
        CelRule(
            rule="!has(self.counted) || self.counted || self.action == 'Restart'",
            message="spec.runPolicy.failureRules: only restarts are counted: "
            "remove counted from a rule whose action is not Restart.",
            field_path=".counted",
        ),
    ],
}
