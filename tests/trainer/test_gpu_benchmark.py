"""benchmarks/gpu.py without its runs: the jobs it writes, how it judges, and that it goes on where it was."""

import json
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dapo_core.jobspec import absolute_paths, parse_job
from dapo_core.run import metrics
from dapo_trainer.verl_config import Paths, Placement, compose

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def gpu() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield import_module("gpu")
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("mode", ["Colocated", "Separated"])
@pytest.mark.parametrize("name", ["tiny", "Qwen2.5-0.5B", "Qwen2.5-1.5B"])
def test_every_run_is_a_valid_job_that_profiles_a_step(
    name: str, mode: str, device: Any, gpu: Any, tmp_path: Path
) -> None:
    job = parse_job(absolute_paths(gpu.job(name, mode, device, 4, tmp_path), tmp_path))
    config = compose(job.spec, Placement(device), Paths("/m", ("/t",), (), "/c"))
    assert config.global_profiler.steps == [2] and config.actor_rollout_ref.actor.profiler.enable
    backend = config.actor_rollout_ref.rollout.checkpoint_engine.backend
    assert mode == "Colocated" or backend == "dapo_tcp", "both halves share one device"


def curves(**changes: dict[int, float]) -> dict[str, dict[int, float]]:
    made = {
        metrics.MISMATCH: {1: 1e-9, 2: 2e-9, 3: 3e-9},
        "actor/grad_norm": {1: 0.5, 2: 0.4, 3: 0.3},
        "timing_s/step": {1: 60.0, 2: 30.0, 3: 2.0, 4: 4.0},
        metrics.TOKENS_TRAINED: {3: 1000.0, 4: 2000.0},
    }
    return made | changes


@pytest.mark.parametrize(
    ("recorded", "profiled", "problem"),
    [
        pytest.param(curves(), True, None, id="as it should be"),
        pytest.param(curves(**{metrics.MISMATCH: {1: 1e-9, 4: 2e-5}}), True, "differ by 2.0e-05", id="a lost update"),
        pytest.param(curves(**{metrics.MISMATCH: {}}), True, "differ by nan", id="nothing to compare"),
        pytest.param(curves(**{"actor/grad_norm": {1: 0.0}}), True, "did not move", id="no gradient"),
        pytest.param(curves(), False, "no trace", id="no profile"),
    ],
)
def test_what_a_run_shows(recorded: Any, profiled: bool, problem: str | None, gpu: Any) -> None:
    found = gpu.outcome("tiny", "Colocated", "cpu", 90.0, recorded, profiled)
    assert (found.step_seconds, found.tokens_per_second) == (3.0, 500.0), "without the first and the profiled step"
    assert problem is None if not found.problems else problem is not None and problem in found.problems[0]


def test_a_run_that_has_ended_is_not_repeated(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run(name: str, mode: str, device: str, steps: int, out: Path) -> Any:
        ran.append(mode)
        return gpu.outcome(name, mode, device, 90.0, curves(), True)

    monkeypatch.setattr(gpu, "run", run)
    monkeypatch.setattr(gpu, "build_model", lambda name, folder: None)
    arguments = ["gpu.py", "--device", "cpu", "--tiny", "--out", str(tmp_path)]
    for more, expected in (
        (["--modes", "Colocated"], ["Colocated"]),
        ([], ["Colocated", "Separated"]),
        (["--again"], ["Colocated", "Separated"] * 2),
    ):
        monkeypatch.setattr(sys, "argv", [*arguments, *more])
        with pytest.raises(SystemExit) as ended:
            gpu.main()
        assert ended.value.code in (0, False) and ran == expected
    lines = (tmp_path / "results.md").read_text().splitlines()
    assert [line.split(" | ")[1] for line in lines if line.startswith("| tiny")] == ["Colocated", "Separated"]
    kept = json.loads(next((tmp_path / "results").iterdir()).read_text())
    assert kept.keys() == asdict(gpu.outcome("tiny", "Colocated", "cpu", 90.0, curves(), True)).keys()


def test_the_reward_is_earned_by_half_of_all_responses(gpu: Any) -> None:
    assert [gpu.judge_length("a" * count, "", prompt="") for count in range(4)] == [1.0, -1.0, 1.0, -1.0]
