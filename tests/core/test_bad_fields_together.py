"""Fields of a job that do not go together: one sentence for each rule, with field, value and remedy."""

from typing import Any

import pytest
from builders import VALIDATION
from spec_problems import case, messages


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        case(
            "clip order",
            "algorithm.clipLow is 0.3 but spec.algorithm.clipHigh is 0.2: set clipLow to at most clipHigh.",
            algorithm={"clipLow": 0.3, "clipHigh": 0.2},
        ),
        case(
            "a tracker twice",
            "trackers[2] is wandb, which the list has already: name each tracker once.",
            trackers=["wandb", "mlflow", "wandb"],
        ),
        case(
            "an unknown tracker",
            'trackers[0] is "comet" but must be one of wandb, mlflow, tensorboard.',
            trackers=["comet"],
        ),
        case(
            "a field of another loss",
            "algorithm.clipHigh is 0.3 but spec.algorithm.loss is sapo, which does not use it: remove it, or set loss "
            "to dapo or gspo or cispo or drgrpo.",
            algorithm={"loss": "sapo", "clipHigh": 0.3},
        ),
        case(
            "SAPO's temperature for DAPO",
            "algorithm.tauPositive is 1 but spec.algorithm.loss is dapo, which does not use it: remove it, or set loss "
            "to sapo.",
            algorithm={"tauPositive": 1.0},
        ),
        case(
            "a bound that the loss needs",
            "algorithm.clipLow is null but spec.algorithm.loss dapo needs it: set a number, or remove it for the "
            "default.",
            algorithm={"clipLow": None},
        ),
        case(
            "Dr. GRPO by token",
            "algorithm.lossAggregation is TokenMean but spec.algorithm.loss is drgrpo, which needs SequenceSum: remove "
            "it, or choose another loss.",
            algorithm={"loss": "drgrpo", "lossAggregation": "TokenMean"},
        ),
        case(
            "Dr. GRPO over the deviation",
            "algorithm.normalizeByStd is true but spec.algorithm.loss is drgrpo, which needs false: remove it, or "
            "choose another loss.",
            algorithm={"loss": "drgrpo", "normalizeByStd": True},
        ),
        case(
            "GSPO's clip order",
            "algorithm.clipLow is 0.2 but spec.algorithm.clipHigh is 0.0004: set clipLow to at most clipHigh.",
            algorithm={"loss": "gspo", "clipLow": 0.2},
        ),
        case(
            "an unknown loss",
            'algorithm.loss is "ppo" but must be one of dapo, gspo, cispo, sapo, drgrpo.',
            algorithm={"loss": "ppo"},
        ),
        case(
            "a rejection of equal probabilities",
            "algorithm.rolloutRejection.upper is 0.5, but 1 is the ratio of equal probabilities: set it above 1.",
            algorithm={"rolloutRejection": {"upper": 0.5}},
        ),
        case(
            "a rejection from above 1",
            "algorithm.rolloutRejection.lower is 1.5, but 1 is the ratio of equal probabilities: set it below 1.",
            algorithm={"rolloutRejection": {"lower": 1.5, "upper": 2.0}},
        ),
        case(
            "a lower bound of a distance",
            "algorithm.rolloutRejection.lower is 0.5 but measure is K3, a distance with only an upper bound: remove "
            "lower.",
            algorithm={"rolloutRejection": {"measure": "K3", "lower": 0.5, "upper": 2.0}},
        ),
        case(
            "the maximum of a ratio",
            "algorithm.rolloutRejection.level is SequenceMax but measure is Ratio, and the largest of a response's "
            "ratios says nothing of the small ones: set measure to K2 or K3.",
            algorithm={"rolloutRejection": {"level": "SequenceMax"}},
        ),
        case(
            "penalty past the limit",
            "algorithm.overlong.penalty.expectedTokens is 90 and cacheTokens is 20, 110 in all, but "
            "spec.batch.maxResponseTokens is 100: lower them so that their sum is at most that.",
            algorithm={"overlong": {"penalty": {"expectedTokens": 90, "cacheTokens": 20}}},
            batch={"maxResponseTokens": 100},
        ),
        case(
            "a group of one",
            "batch.responsesPerPrompt is 1 but spec.algorithm.dynamicSampling.enabled is true, and a group of one is "
            "always all correct or all incorrect: set it to 2 or more, or enabled to false.",
            batch={"responsesPerPrompt": 1},
        ),
        case(
            "torn groups",
            "batch.miniBatchResponses is 12 but spec.batch.responsesPerPrompt is 8: set it to a multiple of that, "
            "so that no group is split between updates.",
            batch={"prompts": 3, "responsesPerPrompt": 8, "miniBatchResponses": 12},
        ),
        case(
            "uneven updates",
            "batch.miniBatchResponses is 16, which does not divide the 24 responses of a step (spec.batch.prompts 3 x "
            "responsesPerPrompt 8): set it to 24 or a divisor of that.",
            batch={"prompts": 3, "responsesPerPrompt": 8, "miniBatchResponses": 16},
        ),
        case(
            "uneven ranks",
            "batch.miniBatchResponses is 512 but spec.topology.trainer has 3 FSDP ranks: set it to a multiple of 3, "
            "so that each rank gets the same number of responses.",
            batch={"miniBatchResponses": 512},
            topology={"trainer": {"replicas": 3}},
        ),
        case(
            "engines do not fit",
            "topology.rollout.tensorParallel is 3, which does not fit 2 rollout pods of 4 GPUs: set it to a divisor of "
            "4, or to a multiple of 4 that divides all 8.",
            topology={"mode": "Separated", "rollout": {"replicas": 2, "gpusPerPod": 4, "tensorParallel": 3}},
        ),
        case(
            "engines without GPUs",
            "topology.rollout.tensorParallel is 2 but spec.topology.trainer.gpusPerPod is 0: set it to 1, because a "
            "pod without GPUs holds one engine.",
            topology={"trainer": {"gpusPerPod": 0, "replicas": 2}, "rollout": {"tensorParallel": 2}},
        ),
        case(
            "more rollouts needed than wanted",
            "topology.rollout.minReplicas is 3 but replicas is 2, so that no attempt could start: lower it, or raise "
            "replicas.",
            topology={"mode": "Separated", "rollout": {"replicas": 2, "minReplicas": 3}},
        ),
        case(
            "scaled too far",
            "topology.rollout.replicas is 9 but maxReplicas is 8: lower it, or raise maxReplicas.",
            topology={"mode": "Separated", "rollout": {"replicas": 9, "maxReplicas": 8}},
        ),
        case(
            "spot rollouts without rollout pods",
            "topology.rollout.priorityClassName is spot but spec.topology.mode is Colocated, which has no rollout "
            "pods: remove it, or set mode to Separated.",
            topology={"rollout": {"priorityClassName": "spot"}},
        ),
        case(
            "two places for the scratch",
            "topology.trainer.scratch names several of storageClassName, hostPath and medium: keep one.",
            topology={"trainer": {"scratch": {"size": "1Gi", "hostPath": "/mnt/nvme", "storageClassName": "fast"}}},
        ),
        case(
            "a cache without a volume",
            "topology.modelCache needs exactly one of hostPath, claim and image.",
            topology={"modelCache": {"maxSize": "1Ti"}},
        ),
        case(
            "a cache on two volumes",
            "topology.modelCache needs exactly one of hostPath, claim and image.",
            topology={"modelCache": {"claim": "models", "image": "registry.example.org/qwen:1"}},
        ),
        case(
            "an image with a scheme",
            'topology.modelCache.image is "docker://qwen": write it as registry/name:tag or '
            "registry/name@sha256:DIGEST.",
            topology={"modelCache": {"image": "docker://qwen"}},
        ),
        case(
            "custom reward without module",
            "reward.module is missing but spec.reward.type is custom: set it to package.module:function, or file to "
            "/folder/file.py:function.",
            reward={"type": "custom"},
        ),
        case(
            "module without custom reward",
            'reward.module is "a:b" but spec.reward.type is math: set spec.reward.type to custom or remove it.',
            reward={"module": "a:b"},
        ),
        case(
            "answer rule without answers",
            "reward.answerRule is published but spec.reward.type is exact, which compares no answers: set "
            "spec.reward.type to math or remove it.",
            reward={"type": "exact", "answerRule": "published"},
        ),
        case(
            "module and file",
            'reward.file is "/a/b.py:c" but module is "a:b": keep one of the two.',
            reward={"type": "custom", "module": "a:b", "file": "/a/b.py:c"},
        ),
        case(
            "file form",
            'reward.file is "rewards/score.py": write it as /folder/file.py:function; relative paths work only with '
            "`dapo run` and `dapo plan`.",
            reward={"type": "custom", "file": "rewards/score.py"},
        ),
        case(
            "group of a rule",
            "reward.perGroup is true but spec.reward.type is math, which scores one response at a time: set "
            "spec.reward.type to custom or remove it.",
            reward={"perGroup": True},
        ),
        case(
            "additional reward without a function",
            "reward.additional[0].module is missing but spec.reward.additional[0].type is custom: set it to "
            "package.module:function, or file to /folder/file.py:function.",
            reward={"additional": [{"name": "format", "type": "custom"}]},
        ),
        case(
            "additional reward of the main one's name",
            'reward.additional[0].name is "math", which is also the name of another reward: give each its own name.',
            reward={"additional": [{"name": "math", "type": "exact"}]},
        ),
        case(
            "additional rewards of one name",
            'reward.additional[1].name is "a", which is also the name of another reward: give each its own name.',
            reward={"additional": [{"name": "a", "type": "exact"}, {"name": "a"}]},
        ),
        case(
            "a weight for some files",
            "data.train[1].weight is missing but other files of spec.data.train have a weight: set it for all files or "
            "for none.",
            data={"train": [{"source": "s3://b/a", "weight": 2.0}, {"source": "s3://b/b"}]},
        ),
        case(
            "steps and epochs",
            "schedule.steps is 2 but spec.schedule.epochs is 3: keep one of the two.",
            schedule={"steps": 2, "epochs": 3},
        ),
        case(
            "names twice",
            'data.validation[1].name is "aime", which is also the name of spec.data.validation[0]: give each set its '
            "own name.",
            data={"validation": VALIDATION * 2},
        ),
        case(
            "greedy samples",
            "data.validation[0].temperature is 0, which makes all 32 samples identical: set samplesPerPrompt to 1 or a "
            "temperature above 0.",
            data={"validation": [{**VALIDATION[0], "temperature": 0}]},
        ),
        case(
            "best of nothing",
            "checkpoints.keepBest is 1 but spec.data.validation is empty, so there is no metric by which to compare "
            "checkpoints: add a validation set or set it to 0.",
            checkpoints={"keepBest": 1},
        ),
        case(
            "metric of no set",
            'checkpoints.bestMetric is "val-core/x/acc/mean@8" but the validation sets are aime: use one of them.',
            checkpoints={"bestMetric": "val-core/x/acc/mean@8"},
            data={"validation": VALIDATION},
        ),
        case(
            "metric of too many samples",
            'checkpoints.bestMetric is "val-core/aime/acc/mean@64" but "aime" has samplesPerPrompt 32: use @32.',
            checkpoints={"bestMetric": "val-core/aime/acc/mean@64"},
            data={"validation": VALIDATION},
        ),
        case(
            "metric of fewer samples than are drawn",
            'checkpoints.bestMetric is "val-core/aime/acc/best@8" but "aime" has samplesPerPrompt 32: use @32.',
            checkpoints={"bestMetric": "val-core/aime/acc/best@8"},
            data={"validation": VALIDATION},
        ),
        case(
            "revision of a folder",
            'model.revision is "main" but spec.model.source is s3://b/k: only hf:// sources have revisions, so remove '
            "it.",
            model={"source": "s3://b/k", "revision": "main"},
        ),
        case(
            "all layers and some of them",
            "model.lora.targetModules is q_proj, all-linear, but all-linear includes every layer: keep all-linear or "
            "the names.",
            model={"lora": {"targetModules": ["q_proj", "all-linear"]}},
        ),
        case(
            "ratios to some tokens only",
            "algorithm.oldLogProbs is Rollout but spec.batch.topP is 0.9: vLLM's probabilities are then those among "
            "the tokens that it samples from, and not comparable with the trainer's. Set topP to 1 or oldLogProbs to "
            "Trainer.",
            algorithm={"oldLogProbs": "Rollout"},
            batch={"topP": 0.9},
        ),
        case(
            "nothing to weigh by",
            "algorithm.oldLogProbs is Rollout, which leaves out the trainer's log-probs that importanceCorrection "
            "would compare with: set it to Trainer, or remove importanceCorrection.",
            algorithm={"oldLogProbs": "Rollout", "importanceCorrection": {}},
        ),
        case(
            "nothing to weigh or reject by",
            "algorithm.oldLogProbs is Rollout, which leaves out the trainer's log-probs that importanceCorrection and "
            "rolloutRejection would compare with: set it to Trainer, or remove importanceCorrection and "
            "rolloutRejection.",
            algorithm={"oldLogProbs": "Rollout", "importanceCorrection": {}, "rolloutRejection": {}},
        ),
        case(
            "weights of some tokens only",
            "algorithm.importanceCorrection is set but spec.batch.topP is 0.9: vLLM's probabilities are then those "
            "among the tokens that it samples from, and not comparable with the trainer's. Set topP to 1 or remove "
            "importanceCorrection.",
            algorithm={"importanceCorrection": {}},
            batch={"topP": 0.9},
        ),
        case(
            "rejection by some tokens only",
            "algorithm.rolloutRejection is set but spec.batch.topP is 0.9: vLLM's probabilities are then those among "
            "the tokens that it samples from, and not comparable with the trainer's. Set topP to 1 or remove "
            "rolloutRejection.",
            algorithm={"rolloutRejection": {}},
            batch={"topP": 0.9},
        ),
        case(
            "carried ratios of some tokens only",
            "algorithm.dynamicSampling.surplus is Carry but spec.batch.topP is 0.9: vLLM's probabilities are then "
            "those among the tokens that it samples from, and not comparable with the trainer's. Set topP to 1 or "
            "surplus to Discard.",
            algorithm={"dynamicSampling": {"surplus": "Carry"}},
            batch={"topP": 0.9},
        ),
        case(
            "staleness where nothing is stale",
            "algorithm.maxStaleness is 2 but spec.topology.mode is Colocated, where no group is older than "
            "dynamicSampling.surplus says: remove it.",
            algorithm={"maxStaleness": 2},
        ),
        case(
            "falling backoff",
            "runPolicy.backoffMaxSeconds is 5 but spec.runPolicy.backoffSeconds is 10: set it to at least that.",
            runPolicy={"backoffMaxSeconds": 5},
        ),
        case(
            "kueue without queue",
            "runPolicy.gang.queue is missing but spec.runPolicy.gang.scheduler is kueue: set it to a LocalQueue.",
            runPolicy={"gang": {"scheduler": "kueue"}},
        ),
        case(
            "uncounted failure",
            "runPolicy.failureRules[0].counted is false but the rule's action is Fail: only restarts are counted, so "
            "remove it.",
            runPolicy={"failureRules": [{"action": "Fail", "counted": False}]},
        ),
        case(
            "guards twice",
            "guards[1].rule is NonFinite, as in spec.guards[0]: keep one of the two.",
            guards=[{"rule": "NonFinite"}, {"rule": "NonFinite"}],
        ),
    ],
)
def test_one_sentence_each(spec: dict[str, Any], sentence: str) -> None:
    assert messages(spec) == [sentence]
