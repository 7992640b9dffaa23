"""Every CEL rule of the CRD, as the API server itself understands it: refused at `kubectl apply`, with its sentence."""

from copy import deepcopy
from typing import Any

import pytest
from builders import MINIMAL, VALIDATION
from servers.kubernetes_api import Refused
from servers.kubernetes_objects import Kubernetes

from dapo_core.errors import SpecError
from dapo_core.jobspec import parse_job
from dapo_core.jobspec.presets import merged
from dapo_core.jobspec.rules import CEL_RULES
from dapo_core.naming import ROLES

JOBS = "/apis/dapo.io/v1alpha1/namespaces/{}/dapojobs"
GUARD = {"rule": "EntropyCollapse", "action": "Warn"}

# What breaks each rule that holds for a job by itself; `name` is the job's.
BROKEN: dict[str, dict[str, Any]] = {
    "metadata.name must have": {"name": "a" * 45},
    "spec.algorithm.overlong.penalty": {
        "algorithm": {"overlong": {"penalty": {"expectedTokens": 20_000, "cacheTokens": 4096}}}
    },
    "spec.batch.responsesPerPrompt is 1": {"batch": {"responsesPerPrompt": 1}},
    "spec.batch.miniBatchResponses must be a multiple of the number of FSDP": {"topology": {"trainer": {"replicas": 3}}}
    | {"batch": {"miniBatchResponses": 512}},
    "spec.guards has two guards": {"guards": [GUARD, GUARD | {"action": "Fail"}]},
    **{
        f"spec.topology.{role}.scratch": {
            "topology": {role: {"scratch": {"size": "1Gi", "hostPath": "/mnt", "medium": "Memory"}}}
        }
        for role in ROLES
    },
    "spec.topology.modelCache": {"topology": {"modelCache": {"hostPath": "/mnt", "image": "qwen:1"}}},
    "spec.checkpoints.keepBest needs": {"checkpoints": {"keepBest": 1}},
    "spec.model.revision is set": {"model": {"source": "s3://bucket/model", "revision": "main"}},
    "spec.model.lora.targetModules has": {"model": {"lora": {"targetModules": ["q_proj", "all-linear"]}}},
    "spec.algorithm.oldLogProbs is Rollout but": {"batch": {"topP": 0.9}, "algorithm": {"oldLogProbs": "Rollout"}},
    "spec.algorithm.oldLogProbs is Rollout, which": {"algorithm": {"oldLogProbs": "Rollout", "rolloutRejection": {}}},
    "spec.algorithm.importanceCorrection is set": {"batch": {"topP": 0.9}, "algorithm": {"importanceCorrection": {}}},
    "spec.algorithm.rolloutRejection is set": {"batch": {"topP": 0.9}, "algorithm": {"rolloutRejection": {}}},
    "spec.algorithm.dynamicSampling.surplus is Carry": {
        "batch": {"topP": 0.9},
        "algorithm": {"dynamicSampling": {"surplus": "Carry"}},
    },
    "spec.algorithm.maxStaleness is set": {"algorithm": {"maxStaleness": 2}},
    "spec.data.validation has two sets": {"data": {"validation": [*VALIDATION, *VALIDATION]}},
    "spec.data.validation: temperature 0": {
        "data": {"validation": [VALIDATION[0] | {"temperature": 0, "samplesPerPrompt": 32}]}
    },
    "spec.reward: type custom needs": {"reward": {"type": "custom"}},
    "spec.reward.perGroup": {"reward": {"additional": [{"name": "a", "perGroup": True}]}},
    "spec.reward.additional": {"reward": {"additional": [{"name": "math"}]}},
    "spec.data.train": {"data": {"train": [{"source": "s3://b/a", "weight": 2.0}, {"source": "s3://b/b"}]}},
    "spec.reward.answerRule": {"reward": {"type": "exact", "answerRule": "published"}},
    "spec.algorithm.clipLow is more": {"algorithm": {"clipLow": 0.5}},
    "spec.algorithm has a field that its loss": {"algorithm": {"loss": "sapo", "clipHigh": 0.3}},
    "spec.algorithm.loss sapo needs": {"algorithm": {"loss": "drgrpo", "normalizeByStd": True}},
    "spec.algorithm.rolloutRejection: measure": {"algorithm": {"rolloutRejection": {"upper": 0.5}}},
    "spec.algorithm.rolloutRejection.level": {"algorithm": {"rolloutRejection": {"level": "SequenceMax"}}},
    "spec.batch.miniBatchResponses must be a multiple of spec.batch": {"batch": {"miniBatchResponses": 24}},
    "spec.batch.miniBatchResponses must divide": {"batch": {"miniBatchResponses": 48}},
    "spec.schedule.steps and": {"schedule": {"steps": 1, "epochs": 1}},
    "spec.topology.rollout.tensorParallel": {"topology": {"rollout": {"tensorParallel": 3}}},
    "spec.topology.rollout.minReplicas is more": {"topology": {"mode": "Separated", "rollout": {"minReplicas": 2}}},
    "spec.topology.rollout.replicas is more": {
        "topology": {"mode": "Separated", "rollout": {"replicas": 3, "maxReplicas": 2}}
    },
    "spec.topology.rollout: minReplicas, maxReplicas": {"topology": {"rollout": {"minReplicas": 0}}},
    "spec.trackers names": {"trackers": ["wandb", "wandb"]},
    "spec.runPolicy.backoffMaxSeconds": {"runPolicy": {"backoffSeconds": 700}},
    "spec.runPolicy.gang.queue": {"runPolicy": {"gang": {"scheduler": "kueue"}}},
    "spec.runPolicy.failureRules": {
        "runPolicy": {"failureRules": [{"action": "Fail", "exitCodes": [1], "counted": False}]}
    },
}
# Changes of a job that is there, by the field that may not change.
FROZEN: dict[str, dict[str, Any]] = {
    "managedBy": {"managedBy": "example.com/queue"},
    "runId": {"runId": "first-20260131-0412-x7k2"},
    "model": {"model": {"source": "hf://c/d"}},
    "data": {"data": {"train": [{"source": "s3://bucket/other.parquet"}]}},
    "reward": {"reward": {"type": "math"}},
    "algorithm": {"algorithm": {"clipHigh": 0.3}},
    "optimizer": {"optimizer": {"learningRate": 1e-5}},
    "batch": {"batch": {"prompts": 256}},
    "verlOverrides": {"verlOverrides": {"trainer": {"nnodes": 2}}},
}


def job(groups: dict[str, Any]) -> dict[str, Any]:
    spec = {key: value for key, value in groups.items() if key != "name"}
    raw: dict[str, Any] = merged(deepcopy(MINIMAL), {"spec": spec})
    raw["metadata"]["name"] = groups.get("name", "first")
    return raw


def test_no_rule_is_left_out() -> None:
    sentences = [rule.message for rule in CEL_RULES]
    starts = (*BROKEN, *(f"spec.{field} cannot be changed" for field in FROZEN))
    assert [sum(sentence.startswith(start) for start in starts) for sentence in sentences] == [1] * len(sentences)


@pytest.mark.parametrize("sentence", BROKEN)
def test_a_broken_rule_is_refused_by_both(sentence: str, kubernetes: Kubernetes) -> None:
    raw = job(BROKEN[sentence])
    with pytest.raises(Refused) as refused:
        kubernetes.api.create(JOBS.format("default"), raw, dryRun="All")
    assert refused.value.code == 422 and sentence in str(refused.value)
    with pytest.raises(SpecError):
        parse_job(raw)


def test_what_was_trained_with_is_not_changed(kubernetes: Kubernetes, namespace: str) -> None:
    kubernetes.api.create(JOBS.format(namespace), job({}))
    for field, change in FROZEN.items():
        with pytest.raises(Refused, match=f"spec.{field} cannot be changed") as refused:
            kubernetes.api.patch(f"{JOBS.format(namespace)}/first", {"spec": change}, dryRun="All")
        assert refused.value.code == 422
    changed = {"schedule": {"steps": 300}, "topology": {"rollout": {"replicas": 4}}, "suspend": True, "guards": [GUARD]}
    kubernetes.api.patch(f"{JOBS.format(namespace)}/first", {"spec": changed}, dryRun="All")


@pytest.mark.parametrize(
    "name",
    ["Upper", "under_score", "größe", "1first", "a.b", ""],
    ids=["upper", "_", "unicode", "digit", "dot", "none"],
)
def test_a_name_that_no_pod_could_have(name: str, kubernetes: Kubernetes) -> None:
    with pytest.raises(Refused) as refused:
        kubernetes.api.create(JOBS.format("default"), job({"name": name}), dryRun="All")
    assert refused.value.code == 422 and "name" in str(refused.value)
