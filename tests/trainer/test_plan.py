"""`dapo plan`: what a job would run, and where each value comes from."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import MINIMAL, VALIDATION, job
from typer.testing import CliRunner

from dapo_core.cli.main import app
from dapo_core.jobspec.presets import merged
from dapo_trainer.plan import command
from dapo_trainer.plan.memory import DEFAULT_GPU
from dapo_trainer.plan.plan_tables import pod_groups, step_work

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.rglob("*.yaml"))


def planned(*arguments: str, width: int = 200) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": str(width), "DAPO_DEVICE": "cpu"})
    assert result.exit_code == 0, result.output
    return result.output


def row(output: str, name: str) -> list[str]:
    """The cells of the table row that begins with `name`."""
    found = [[cell.strip() for cell in line.strip("│ ").split("│")] for line in output.splitlines() if "│" in line]
    return next(cells for cells in found if cells[0] == name)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        pytest.param({}, (512, 8192, 512 * 2048, 8192 * 20480, 16, 512, 5120), id="the paper"),
        pytest.param(
            {"algorithm": {"dynamicSampling": {"enabled": False}}},
            (512, 8192, 512 * 2048, 8192 * 20480, 16, 512, None),
            id="without dynamic sampling",
        ),
        pytest.param(
            {"algorithm": {"dynamicSampling": {"maxGenerationBatches": 0}}},
            (512, 8192, 512 * 2048, 8192 * 20480, 16, 512, None),
            id="no cap",
        ),
        pytest.param(
            {
                "data": {"maxPromptTokens": 16},
                "batch": {"prompts": 32, "responsesPerPrompt": 8, "miniBatchResponses": 64, "maxResponseTokens": 40},
                "algorithm": {"dynamicSampling": {"maxGenerationBatches": 3}},
            },
            (32, 256, 512, 10_240, 4, 64, 96),
            id="the demo",
        ),
    ],
)
def test_work_of_a_step(groups: dict[str, Any], expected: tuple[int | None, ...]) -> None:
    one = step_work(job(**groups).spec)
    assert (
        one.prompts,
        one.responses,
        one.prompt_tokens,
        one.response_tokens,
        one.updates,
        one.responses_per_update,
        one.max_prompts_generated,
    ) == expected


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        pytest.param({}, [("head", 1, 0), ("trainer", 1, 1)], id="colocated"),
        pytest.param(
            {
                "mode": "Separated",
                "trainer": {"replicas": 2, "gpusPerPod": 8},
                "rollout": {"replicas": 3, "gpusPerPod": 4},
            },
            [("head", 1, 0), ("trainer", 2, 8), ("rollout", 3, 4)],
            id="separated",
        ),
        pytest.param({"trainer": {"gpusPerPod": 0}}, [("head", 1, 0), ("trainer", 1, 0)], id="on CPUs"),
    ],
)
def test_pods_by_role(topology: dict[str, Any], expected: list[tuple[str, int, int]]) -> None:
    assert [(group.role, group.count, group.gpus) for group in pod_groups(job(topology=topology).spec)] == expected


def test_a_pod_without_gpus_runs_a_rank_as_well() -> None:
    _, trainer = pod_groups(job(topology={"trainer": {"gpusPerPod": 0}}).spec)
    assert trainer.runs == "1 FSDP rank(s), taking turns with 1 vLLM engine(s) in total"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    given = {
        "data": {"train": [{"source": "data/a.parquet"}], "validation": VALIDATION},
        "algorithm": {"clipHigh": 0.3},
        "verlOverrides": {"trainer.balance_batch": False},
    }
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(merged(MINIMAL, {"spec": given})))
    return path


def test_each_value_shows_where_it_comes_from(file: Path) -> None:
    output = planned(str(file))
    assert row(output, "algorithm.clipHigh") == ["algorithm.clipHigh", "0.3", "file"]
    assert row(output, "algorithm.clipLow") == ["algorithm.clipLow", "0.2", "preset dapo"]
    assert row(output, "schedule.validateBefore")[2] == "default"
    assert row(output, "data.train[0].source") == [
        "data.train[0].source", (file.parent / "data/a.parquet").as_uri(), "file"
    ]  # fmt: skip
    assert row(output, "data.validation[0].name") == ["data.validation[0].name", "aime", "file"]
    assert row(output, "data.validation[0].topP")[2] == "default"
    assert row(output, "trainer.balance_batch") == ["trainer.balance_batch", "False", "verlOverrides"]
    assert row(output, "actor_rollout_ref.actor.clip_ratio_high")[1:] == ["0.3", "the job"]


@pytest.mark.parametrize(
    ("example", "options", "device"),
    [
        pytest.param("qwen2.5-32b-aime.yaml", [], "cuda", id="many GPUs"),
        pytest.param("gpu/8-gpus.yaml", [], "cuda", id="eight GPUs"),
        pytest.param("gpu/1-gpu.yaml", [], "cpu", id="one GPU, which this machine does not have"),
        pytest.param("gpu/1-gpu.yaml", ["--gpu", DEFAULT_GPU], "cuda", id="one GPU, named"),
        pytest.param("arithmetic-cluster.yaml", ["--gpu", DEFAULT_GPU], "cpu", id="processors"),
    ],
)
def test_b13_a_plan_is_for_the_jobs_device(
    monkeypatch: pytest.MonkeyPatch, example: str, options: list[str], device: str
) -> None:
    monkeypatch.delenv("DAPO_DEVICE", raising=False)
    monkeypatch.setattr(command, "detect_device", lambda: "cpu")
    result = CliRunner().invoke(app, ["plan", str(FOLDER / example), *options], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert row(result.output, "trainer.device")[1] == device


def test_the_demos_plan() -> None:
    output = planned(str(FOLDER / "arithmetic.yaml"))
    assert row(output, "prompts x responses")[1] == "32 x 8 = 256"
    assert row(output, "tokens, at most")[1] == "512 of prompts, 10,240 of responses"
    assert row(output, "updates")[1] == "4 of 64 responses"
    assert row(output, "trainer")[1] == "1"
    assert row(output, "data.train[0].source")[2] == "file"


def test_a_narrow_terminal_loses_no_name(file: Path) -> None:
    assert "…" not in planned(str(file), width=80)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_can_be_planned(path: Path) -> None:
    output = planned(str(path))
    printed = {line.strip("│ ").split("│")[0].strip() for line in output.splitlines() if "│" in line}
    assert {"GPUs", "tokens, at most", "updates"} <= printed
    if "arithmetic" not in path.stem:
        causes = {"weights", "gradients", "optimizer", "logits", "KV cache"}
        assert causes <= printed
        assert "activations of " in output and "warning:" not in output


def test_what_cannot_fit_is_printed_last(tmp_path: Path) -> None:
    """Where a terminal still shows it, after all the fields."""
    too_much = {"model": {"source": "hf://Qwen/Qwen2.5-32B"}, "topology": {"trainer": {"gpusPerPod": 8}}}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(merged(MINIMAL, {"spec": too_much})))
    output = planned(str(path))
    assert "weights, gradients and optimizer: add GPUs" in output[output.rindex("│") :]


def test_responses_longer_than_the_models_context_are_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(merged(MINIMAL, {"spec": {"model": {"source": "hf://Qwen/Qwen2.5-Math-7B"}}})))
    last = " ".join(planned(str(path)).rpartition("│")[2].split())
    assert "warning: spec.batch.maxResponseTokens is 20480" in last and "the model's context of 4096 tokens" in last


def test_the_whole_configuration_is_yaml(file: Path) -> None:
    config = yaml.safe_load(planned(str(file), "--full"))
    assert config["actor_rollout_ref"]["actor"]["clip_ratio_high"] == 0.3
    assert config["trainer"]["balance_batch"] is False
