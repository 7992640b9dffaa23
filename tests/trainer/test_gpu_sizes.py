"""Sizes that follow from the job, the model and the GPU, instead of verl's one default for all."""

from pathlib import Path
from typing import Any

import pytest
from builders import job
from omegaconf import OmegaConf
from typer.testing import CliRunner

from dapo_core.cli.main import app
from dapo_core.jobspec import DAPOJobSpec, load_job
from dapo_trainer.plan.architecture import KNOWN
from dapo_trainer.plan.gpu_sizes import BATCHED_TOKENS, MICRO_BATCH, SEQUENCES, UTILIZATION, Size, set_sizes
from dapo_trainer.plan.memory import GPUS, MemorySettings, training_memory
from dapo_trainer.verl_config import Paths, Placement, compose

EXAMPLES = Path(__file__).parents[2] / "examples"
PATHS = Paths(model="/m", train=("/t.parquet",), validation=("/v.parquet",), checkpoints="/c")


def sized(spec: DAPOJobSpec, model: str | None, gpu: str | None) -> tuple[Any, dict[str, Size]]:
    config = compose(spec, Placement("cuda"), PATHS)
    sizes = set_sizes(config, spec, KNOWN[model] if model else None, GPUS[gpu] if gpu else None)
    for size in sizes:
        assert OmegaConf.select(config, size.key) == size.value and size.why
    return config, {size.key: size for size in sizes}


SMALL = {"batch": {"prompts": 32, "responsesPerPrompt": 16, "miniBatchResponses": 128, "maxResponseTokens": 2048}}
SEPARATED = {"topology": {"mode": "Separated"}}


@pytest.mark.parametrize(
    ("groups", "model", "gpu", "sequences", "why"),
    [
        pytest.param(SMALL, "Qwen2.5-1.5B", "h100-80gb", 864, "half of their limits", id="S2"),
        pytest.param(
            SMALL, "Qwen2.5-7B", "l40s", 16, "half of their limits", id="a GPU that is too small for the batch"
        ),
        pytest.param(SMALL, None, None, 1024, "1,024 responses", id="an unknown model on an unknown GPU"),
        pytest.param(
            SMALL | {"topology": {"trainer": {"replicas": 2, "gpusPerPod": 8}}},
            "Qwen2.5-1.5B",
            "h100-80gb",
            64,
            "by 16 engines",
            id="many engines",
        ),
        pytest.param(
            SMALL | {"algorithm": {"preset": "grpo"}}, "Qwen2.5-1.5B", "h100-80gb", 512, "512 responses", id="one wave"
        ),
    ],
)
def test_sequences_of_an_engine(
    groups: dict[str, Any], model: str | None, gpu: str | None, sequences: int, why: str
) -> None:
    _, sizes = sized(job(**groups).spec, model, gpu)
    assert sizes[SEQUENCES].value == sequences and why in sizes[SEQUENCES].why
    assert sizes[BATCHED_TOKENS].value >= sequences


@pytest.mark.parametrize(
    ("groups", "model", "gpu", "expected"),
    [
        pytest.param(SMALL | SEPARATED, "Qwen2.5-7B", "h100-80gb", 0.9, id="a GPU of its own"),
        pytest.param(SMALL | SEPARATED, None, None, 0.9, id="a GPU of its own, of any kind"),
        pytest.param(SMALL, "Qwen2.5-1.5B", "h100-80gb", 0.69, id="what the trainer leaves"),
        pytest.param(SMALL, "Qwen2.5-7B", "h100-80gb", 0.3, id="a trainer that leaves nothing"),
        pytest.param(SMALL, "Qwen2.5-7B", None, None, id="not known: as verl has it"),
    ],
)
def test_vllms_share_of_a_gpu(
    groups: dict[str, Any], model: str | None, gpu: str | None, expected: float | None
) -> None:
    config, sizes = sized(job(**groups).spec, model, gpu)
    assert (sizes[UTILIZATION].value if UTILIZATION in sizes else None) == expected
    assert expected is not None or config.actor_rollout_ref.rollout.gpu_memory_utilization == 0.5


@pytest.mark.parametrize("model", ["Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-3B"])
@pytest.mark.parametrize("gpu", sorted(GPUS))
def test_a_pass_of_training_fits_the_gpu(model: str, gpu: str) -> None:
    spec = job(**SMALL).spec
    config, sizes = sized(spec, model, gpu)
    tokens = int(sizes[MICRO_BATCH].value)
    longest = spec.data.max_prompt_tokens + spec.batch.max_response_tokens
    assert tokens % 1024 == 0 and tokens >= longest
    total = training_memory(KNOWN[model], MemorySettings.of(spec, config), longest).total
    assert tokens == longest or total <= 0.85 * GPUS[gpu].memory


@pytest.mark.parametrize("name", ["gpu/128-gpus", "qwen2.5-32b-aime"])
def test_a_response_spread_over_gpus_is_a_part_on_each(name: str) -> None:
    spec = load_job(EXAMPLES / f"{name}.yaml").spec
    config, sizes = sized(spec, "Qwen2.5-32B", "h100-80gb")
    parallel = int(config.actor_rollout_ref.actor.ulysses_sequence_parallel_size)
    longest = spec.data.max_prompt_tokens + spec.batch.max_response_tokens
    assert sizes[MICRO_BATCH].value * parallel >= longest


def test_what_the_job_sets_is_kept() -> None:
    spec = job(**SMALL, verlOverrides={SEQUENCES: 32, UTILIZATION: 0.7}).spec
    config, sizes = sized(spec, "Qwen2.5-1.5B", "h100-80gb")
    assert SEQUENCES not in sizes and UTILIZATION not in sizes
    rollout = config.actor_rollout_ref.rollout
    assert (rollout.max_num_seqs, rollout.gpu_memory_utilization) == (32, 0.7)
    assert rollout.enable_chunked_prefill


def test_a_plan_prints_why() -> None:
    arguments = ["plan", str(EXAMPLES / "gpu" / "1-gpu.yaml"), "--gpu", "h200"]
    output = CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "DAPO_DEVICE": "cuda"}).output
    derived = output.partition("Derived from the model and the GPU")[2].partition("The job")[0]
    assert "max_num_seqs" in derived and "the trainer keeps" in derived and "140.4 GiB" in derived
    on_cpu = CliRunner().invoke(app, ["plan", str(EXAMPLES / "arithmetic.yaml")], env={"DAPO_DEVICE": "cpu"}).output
    assert "Derived" not in on_cpu
