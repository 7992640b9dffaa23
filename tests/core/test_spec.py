"""What a job file says, what presets and defaults add, and that a job survives being written out."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import MINIMAL, VALIDATION, dumped, job

from dapo_core.errors import SpecError
from dapo_core.jobspec import PRESETS, DAPOJobSpec, field_sources, load_job, parse_job
from dapo_core.jobspec import job as job_module
from dapo_core.jobspec import parse as parse_module
from dapo_core.jobspec.presets import merged, mini_batch_prompts


def test_preset_dapo_is_the_paper() -> None:
    spec = job().spec
    algorithm, batch, optimizer = spec.algorithm, spec.batch, spec.optimizer
    assert (algorithm.clip_low, algorithm.clip_high, algorithm.dual_clip) == (0.2, 0.28, 10.0)
    assert (algorithm.loss_aggregation, algorithm.kl_coefficient) == ("TokenMean", 0.0)
    assert (algorithm.dynamic_sampling.enabled, algorithm.dynamic_sampling.max_generation_batches) == (True, 10)
    penalty = algorithm.overlong.penalty
    assert algorithm.overlong.filter and penalty is not None
    assert (penalty.expected_tokens, penalty.cache_tokens, penalty.factor) == (16384, 4096, 1.0)
    assert (optimizer.learning_rate, optimizer.warmup_steps) == (1e-6, 20)
    assert (optimizer.weight_decay, optimizer.gradient_clip) == (0.1, 1.0)
    assert (batch.prompts, batch.responses_per_prompt, batch.max_response_tokens) == (512, 16, 20480)
    assert (batch.responses, batch.updates_per_step, batch.mini_batch_prompts) == (8192, 16, 32)


def test_preset_grpo_is_dapo_without_its_four_techniques() -> None:
    algorithm = job(algorithm={"preset": "grpo"}).spec.algorithm
    assert (algorithm.clip_low, algorithm.clip_high) == (0.2, 0.2)
    assert (algorithm.loss_aggregation, algorithm.kl_coefficient) == ("SequenceMean", 0.0)
    assert not algorithm.dynamic_sampling.enabled
    assert not algorithm.overlong.filter and algorithm.overlong.penalty is None


@pytest.mark.parametrize("preset", ["dapo", "grpo"])
@pytest.mark.parametrize(
    ("loss", "bounds", "taus", "aggregation", "by_std"),
    [
        pytest.param("gspo", (3e-4, 4e-4, None), (None, None), "SequenceMean", True, id="gspo"),
        pytest.param("cispo", (1.0, 0.2, None), (None, None), "TokenMean", True, id="cispo"),
        pytest.param("sapo", (None, None, None), (1.0, 1.05), "SequenceMean", True, id="sapo"),
        pytest.param("drgrpo", (0.2, 0.2, 10.0), (None, None), "SequenceSum", False, id="drgrpo"),
    ],
)
def test_a_loss_sets_its_papers_values_with_either_preset(
    preset: str, loss: str, bounds: tuple[Any, ...], taus: tuple[Any, ...], aggregation: str, by_std: bool
) -> None:
    mine, plain = (job(algorithm={"preset": preset, "loss": name}).spec.algorithm for name in (loss, "dapo"))
    assert (mine.clip_low, mine.clip_high, mine.dual_clip) == bounds
    assert (mine.tau_positive, mine.tau_negative) == taus
    assert (mine.loss_aggregation, mine.normalize_by_std) == (aggregation, by_std)
    assert (mine.dynamic_sampling, mine.overlong) == (plain.dynamic_sampling, plain.overlong), "the preset's"


def test_the_file_comes_over_the_loss_and_the_loss_over_the_preset() -> None:
    data = merged(MINIMAL, {"spec": {"algorithm": {"loss": "gspo", "clipHigh": 0.01, "normalizeByStd": False}}})
    assert parse_job(data).spec.algorithm.clip_high == 0.01
    sources = field_sources(data)
    named = {field: sources[f"spec.algorithm.{field}"] for field in ("clipHigh", "clipLow", "klCoefficient", "loss")}
    assert named == {"clipHigh": "file", "clipLow": "loss gspo", "klCoefficient": "preset dapo", "loss": "file"}


def test_validation_defaults_are_the_papers() -> None:
    (validation,) = job(data={"validation": VALIDATION}).spec.data.validation
    assert (validation.samples_per_prompt, validation.temperature, validation.top_p) == (32, 1.0, 0.7)


@pytest.mark.parametrize(
    ("limit", "given", "expected"),
    [
        pytest.param(20480, {}, (16384, 4096), id="the paper's limit"),
        pytest.param(100, {}, (80, 20), id="a lower limit keeps the proportion"),
        pytest.param(1, {}, (0, 1), id="the lowest limit"),
        pytest.param(100, {"cacheTokens": 40}, (60, 40), id="the zone is given"),
        pytest.param(100, {"expectedTokens": 90}, (90, 10), id="the expected length is given"),
        pytest.param(100, {"expectedTokens": 0}, (0, 100), id="all of it is zone"),
        pytest.param(100, {"expectedTokens": 50, "cacheTokens": 10}, (50, 10), id="both are given"),
    ],
)
def test_penalty_follows_the_limit(limit: int, given: dict[str, int], expected: tuple[int, int]) -> None:
    data = merged(
        MINIMAL,
        {"spec": {"batch": {"maxResponseTokens": limit}, "algorithm": {"overlong": {"penalty": given}}}},
    )
    penalty = parse_job(data).spec.algorithm.overlong.penalty
    assert penalty is not None
    assert (penalty.expected_tokens, penalty.cache_tokens) == expected
    sources = field_sources(data)
    for name in ("expectedTokens", "cacheTokens"):
        assert sources[f"spec.algorithm.overlong.penalty.{name}"] == ("file" if name in given else "preset dapo")


@pytest.mark.parametrize(
    ("preset", "penalty", "on"),
    [
        pytest.param("dapo", {"enabled": False}, False, id="switched off"),
        pytest.param("dapo", None, False, id="null is off"),
        pytest.param("grpo", {}, False, id="grpo has none"),
        pytest.param("grpo", {"enabled": True}, True, id="switched on"),
        pytest.param("grpo", {"cacheTokens": 100}, True, id="naming a number switches it on"),
    ],
)
def test_penalty_switch(preset: str, penalty: dict[str, Any] | None, on: bool) -> None:
    parsed = job(algorithm={"preset": preset, "overlong": {"penalty": penalty}})
    assert (parsed.spec.algorithm.overlong.penalty is not None) is on
    assert parse_job(dumped(parsed)) == parsed


@pytest.mark.parametrize(
    ("prompts", "group", "ranks", "expected"),
    [
        pytest.param(512, 16, 1, 32, id="the paper: 16 updates"),
        pytest.param(32, 8, 1, 2, id="a small batch: 16 updates"),
        pytest.param(12, 8, 1, 1, id="fewer prompts than 16: one group an update"),
        pytest.param(20, 4, 1, 2, id="10 updates, since 16 do not divide"),
        pytest.param(17, 4, 1, 17, id="a prime: one update"),
        pytest.param(32, 2, 8, 4, id="enough groups for every rank"),
        pytest.param(3, 2, 64, 1, id="no number fits: the rule reports it"),
    ],
)
def test_mini_batch_of_a_batch(prompts: int, group: int, ranks: int, expected: int) -> None:
    assert mini_batch_prompts(prompts, group, ranks) == expected


def test_sources_name_file_preset_and_default() -> None:
    data = merged(MINIMAL, {"spec": {"algorithm": {"preset": "grpo", "clipHigh": 0.3}, "topology": {"head": {}}}})
    sources = field_sources(data)
    assert sources["spec.algorithm.clipHigh"] == "file"
    assert sources["spec.algorithm.clipLow"] == "preset grpo"
    assert sources["spec.data.train[0].source"] == "file"
    assert sources["spec.topology.mode"] == "default"
    assert set(sources.values()) == {"file", "preset grpo", "default"}


def test_every_preset_value_reaches_the_job() -> None:
    for name, preset in PRESETS.items():
        spec = dumped(job(algorithm={"preset": name}))["spec"]
        if name == "grpo":
            preset = merged(preset, {"algorithm": {"overlong": {"penalty": {}}}})
            preset["algorithm"]["overlong"]["penalty"] = {"enabled": False}
        assert merged(spec, preset) == spec


def test_schedule_has_a_length() -> None:
    assert (job().spec.schedule.steps, job().spec.schedule.epochs) == (200, None)
    epochs = job(schedule={"epochs": 3}).spec.schedule
    assert (epochs.steps, epochs.epochs) == (None, 3)


def test_guards_warn_by_default_and_only_non_finite_fails() -> None:
    guards = job().spec.guards
    assert [guard.rule for guard in guards if guard.action == "Fail"] == ["NonFinite"]
    assert len(guards) == 7
    assert job(guards=[]).spec.guards == ()
    (one,) = job(guards=[{"rule": "EntropyCollapse", "threshold": 0.01}]).spec.guards
    assert (one.threshold, one.for_steps, one.action) == (0.01, 10, "Warn")


def test_best_metric_is_the_first_validation_sets_mean() -> None:
    checkpoints = job(data={"validation": VALIDATION}, checkpoints={"keepBest": 1}).spec.checkpoints
    assert checkpoints.best_metric == "val-core/aime/acc/mean@32"


@pytest.mark.parametrize(
    ("topology", "ranks", "engines", "gpus"),
    [
        pytest.param({}, 1, 1, 1, id="default"),
        pytest.param({"trainer": {"replicas": 2, "gpusPerPod": 0}}, 2, 2, 0, id="processors, colocated"),
        pytest.param({"trainer": {"gpusPerPod": 8}, "rollout": {"tensorParallel": 2}}, 8, 4, 8, id="one node"),
        pytest.param(
            {"mode": "Separated", "trainer": {"gpusPerPod": 4}, "rollout": {"replicas": 3, "gpusPerPod": 2}},
            4,
            6,
            10,
            id="separated",
        ),
        pytest.param(
            {"mode": "Separated", "rollout": {"replicas": 4, "gpusPerPod": 8, "tensorParallel": 16}},
            1,
            2,
            33,
            id="engines over two pods",
        ),
    ],
)
def test_topology_counts(topology: dict[str, Any], ranks: int, engines: int, gpus: int) -> None:
    counted = job(topology=topology).spec.topology.layout
    assert (counted.fsdp_ranks, counted.engines, counted.gpus) == (ranks, engines, gpus)


@pytest.mark.parametrize(
    ("topology", "needed", "core"),
    [
        pytest.param({"trainer": {"replicas": 2}}, 3, 3, id="colocated"),
        pytest.param({"mode": "Separated", "rollout": {"replicas": 4}}, 6, 2, id="all"),
        pytest.param({"mode": "Separated", "rollout": {"replicas": 4, "minReplicas": 1}}, 3, 2, id="one of four"),
        pytest.param({"mode": "Separated", "rollout": {"replicas": 4, "minReplicas": 0}}, 2, 2, id="none"),
    ],
)
def test_pods_that_an_attempt_needs_to_start(topology: dict[str, Any], needed: int, core: int) -> None:
    layout = job(topology=topology).spec.topology.layout
    assert (sum(layout.required_pods.values()), layout.core_pods) == (needed, core)


def test_head_asks_for_less_than_the_others() -> None:
    topology = job(topology={"head": {"resources": {"cpu": 2}}}).spec.topology
    assert (topology.head.resources.cpu, topology.head.resources.memory) == ("2", "48Gi")
    assert topology.trainer.resources.memory == "64Gi"


@pytest.mark.parametrize(
    ("groups", "same"),
    [
        pytest.param({"runPolicy": {"maxRestarts": 1}, "suspend": True}, True, id="operations may change"),
        pytest.param({"schedule": {"steps": 1000}}, True, id="longer training may go on"),
        pytest.param({"algorithm": {"clipHigh": 0.28}}, True, id="the preset's value said aloud"),
        pytest.param({"algorithm": {"clipHigh": 0.3}}, False, id="another objective"),
        pytest.param({"verlOverrides": {"a": 1}}, False, id="another override"),
    ],
)
def test_digest_covers_what_was_learned(groups: dict[str, Any], same: bool) -> None:
    assert (job().spec.digest() == job(**groups).spec.digest()) is same
    assert len(job().spec.digest()) == 64


def test_jobs_are_immutable() -> None:
    with pytest.raises(ValueError, match="frozen"):
        job().spec.batch.prompts = 3


def test_a_job_as_the_api_server_gives_it() -> None:
    data = merged(MINIMAL, {"metadata": {"uid": "u", "generation": 2, "namespace": "team"}, "status": {"phase": "X"}})
    assert parse_job(data).metadata.namespace == "team"


def test_a_reward_file_is_relative_to_the_job_file(tmp_path: Path) -> None:
    additional = [{"name": "a", "type": "custom", "file": "/abs/score.py:f"}, {"name": "b"}]
    reward = {"type": "custom", "file": "rewards/score.py:judge", "additional": additional}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(merged(MINIMAL, {"spec": {"reward": reward}})))
    loaded = load_job(tmp_path / "job.yaml").spec.reward
    assert loaded.file == f"{tmp_path}/rewards/score.py:judge"
    assert [one.file for one in loaded.additional] == ["/abs/score.py:f", None]
    assert loaded.names == ("custom", "a", "b")


def test_load_makes_plain_paths_absolute(tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    folder.mkdir()
    data = merged(MINIMAL, {"spec": {"model": {"source": "../model"}, "checkpoints": {"uri": "out"}}})
    data["spec"]["data"] = {"train": [{"source": "a b.parquet"}], "validation": [{"name": "v", "source": "/v.jsonl"}]}
    (folder / "job.yaml").write_text(yaml.safe_dump(data))
    spec = load_job(folder / "job.yaml").spec
    assert spec.model.source == (tmp_path / "model").as_uri()
    assert spec.data.train[0].source == f"{folder.as_uri()}/a%20b.parquet"
    assert spec.data.validation[0].source == "file:///v.jsonl"
    assert spec.checkpoints.uri == f"{folder.as_uri()}/out"


def test_numbers_as_people_write_them(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(MINIMAL) + "  optimizer: {learningRate: 1e-6}\n")
    assert load_job(path).spec.optimizer.learning_rate == 1e-6


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a job's defaults are filled in, its rules are checked and its groups are validated one by one."""
    counts: Counter[str] = Counter()

    def counted(name: str, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            counts[name] += 1
            return function(*arguments)

        return call

    for module in (job_module, parse_module):
        for name in ("fill", "check", "TypeAdapter"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    return counts


def test_a_valid_job_is_validated_once(calls: Counter[str]) -> None:
    parse_job(MINIMAL)
    assert calls == {"fill": 1, "check": 1}


def test_an_invalid_job_is_diagnosed_group_by_group(calls: Counter[str]) -> None:
    with pytest.raises(SpecError, match=r"spec\.schedule\.steps is 1"):
        parse_job(merged(MINIMAL, {"spec": {"schedule": {"steps": 1, "epochs": 1}}}))
    assert calls == {"fill": 2, "check": 2, "TypeAdapter": len(DAPOJobSpec.model_fields)}
