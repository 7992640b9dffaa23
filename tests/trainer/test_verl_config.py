"""The job as verl reads it: every example composes, every key is verl's, and the paper's values are the defaults."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import VALIDATION
from omegaconf import OmegaConf
from verl_keys import ACTOR, CPU, CUDA, PATHS, REFERENCE, ROLLOUT, spec, value

from dapo_core.errors import SpecError
from dapo_core.jobspec import load_job
from dapo_trainer.verl_config import Placement, compose, overrides
from dapo_trainer.verl_config.compose import _defaults, _exists
from dapo_trainer.verl_config.placement import detect_device

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").rglob("*.yaml"))


# Groups that take any key: ours, and those handed on to Ray, transformers and vLLM.
OPEN = (
    *("dapo.", "ray_kwargs.", "actor_rollout_ref.model.override_config."),
    *(f"{ROLLOUT}engine_kwargs.", f"{ROLLOUT}checkpoint_engine.engine_kwargs."),
)
# Fields of verl's dataclasses that its YAML files do not name (tests/trainer/test_verl_contract.py finds them there).
UNDECLARED = {
    f"{engine}fsdp_config.mixed_precision.{kind}_dtype"
    for engine in (ACTOR, REFERENCE)
    for kind in ("param", "reduce", "buffer")
} | {f"{ROLLOUT}agent.agent_loop_manager_class", f"{ROLLOUT}enable_sleep_mode"}


@pytest.mark.parametrize("placement", [CPU, CUDA], ids=["cpu", "cuda"])
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_composes(path: Path, placement: Placement) -> None:
    given = load_job(path).spec
    config = compose(given, placement, PATHS)
    assert value(config, "data.train_batch_size") == given.batch.prompts
    assert value(config, f"{ROLLOUT}n") == given.batch.responses_per_prompt
    assert value(config, "trainer.device") == placement.device
    OmegaConf.to_container(config, resolve=True, throw_on_missing=False)  # every reference leads somewhere


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("mode", ["Colocated", "Separated"])
@pytest.mark.parametrize("placement", [CPU, CUDA], ids=["cpu", "cuda"])
@pytest.mark.parametrize("loss", [{}, {"loss": "sapo"}, {"loss": "drgrpo"}], ids=["dapo", "sapo", "drgrpo"])
def test_every_key_we_set_is_verls(mode: str, placement: Placement, loss: dict[str, Any]) -> None:
    """A key that verl renamed would be set beside the real one, and nobody would notice."""
    everything = spec(
        model={"lora": {}},
        topology={"mode": mode},
        algorithm={"importanceCorrection": {}, "rolloutRejection": {}, "klCoefficient": 0.1} | loss,
        data={"validation": VALIDATION},
    )
    keys = [key for key in overrides(everything, placement, PATHS) if not key.startswith(OPEN)]
    assert [key for key in keys if key not in UNDECLARED and not _exists(_defaults(), key)] == []


def test_the_paper() -> None:
    config = compose(spec(), CUDA, PATHS)
    paper = {
        f"{ACTOR}clip_ratio_low": 0.2,
        f"{ACTOR}clip_ratio_high": 0.28,
        f"{ACTOR}loss_agg_mode": "token-mean",
        f"{ACTOR}use_kl_loss": False,
        "algorithm.use_kl_in_reward": False,
        "algorithm.adv_estimator": "grpo",
        f"{ACTOR}entropy_coeff": 0,
        f"{ACTOR}optim.lr": 1e-6,
        f"{ACTOR}optim.lr_warmup_steps": 20,
        "data.train_batch_size": 512,
        f"{ROLLOUT}n": 16,
        f"{ACTOR}ppo_mini_batch_size": 32,
        "data.max_response_length": 20480,
        "algorithm.rollout_correction.rollout_is": None,
    }
    assert {key: value(config, key) for key in paper} == paper


class TestTopology:
    def test_colocated(self) -> None:
        config = compose(spec(), CPU, PATHS)
        assert value(config, "actor_rollout_ref.hybrid_engine") is True
        assert value(config, "trainer.v1.trainer_mode") == "dapo_colocated"

    @pytest.mark.parametrize(("placement", "backend"), [(CPU, "dapo_tcp"), (CUDA, "nccl")], ids=["cpu", "cuda"])
    def test_separated(self, placement: Placement, backend: str) -> None:
        topology = {"mode": "Separated", "rollout": {"replicas": 3, "gpusPerPod": 4, "tensorParallel": 2}}
        config = compose(spec(topology=topology), placement, PATHS)
        expected = {
            "actor_rollout_ref.hybrid_engine": False,
            "trainer.v1.trainer_mode": "dapo_separated",
            "trainer.v1.separate_async.parameter_sync_step": 16,
            f"{ROLLOUT}nnodes": 3,
            f"{ROLLOUT}n_gpus_per_node": 4,
            f"{ROLLOUT}tensor_model_parallel_size": 2,
            f"{ROLLOUT}checkpoint_engine.backend": backend,
        }
        assert {key: value(config, key) for key in expected} == expected

    def test_pods_without_gpus_hold_one_rank_and_one_engine(self) -> None:
        topology = {
            "mode": "Separated",
            "trainer": {"replicas": 2, "gpusPerPod": 0},
            "rollout": {"replicas": 2, "gpusPerPod": 0},
        }
        config = compose(spec(topology=topology), CPU, PATHS)
        keys = ("trainer.nnodes", "trainer.n_gpus_per_node", f"{ROLLOUT}nnodes", f"{ROLLOUT}n_gpus_per_node")
        assert [value(config, key) for key in keys] == [2, 1, 2, 1]
        assert value(config, "ray_kwargs.ray_init.num_gpus") == 4

    def test_a_running_cluster_is_joined(self) -> None:
        config = compose(spec(), Placement("cuda", "head:6379"), PATHS)
        assert value(config, "ray_kwargs.ray_init.address") == "head:6379"
        assert "ray_kwargs.ray_init.num_gpus" not in overrides(spec(), Placement("cuda", "head:6379"), PATHS)

    def test_verl_looks_for_no_checkpoint_by_itself_and_can_be_told_of_one_later(self) -> None:
        config = compose(spec(), CPU, PATHS)
        assert value(config, "trainer.resume_mode") == "disable"
        config.trainer.resume_mode, config.trainer.resume_from_path = "resume_path", "/r/global_step_7"
        assert value(config, "trainer.resume_from_path") == "/r/global_step_7"

    def test_no_validation_set_means_no_validation(self) -> None:
        config = compose(spec(), CPU, PATHS)
        assert (value(config, "trainer.test_freq"), value(config, "trainer.val_before_train")) == (-1, False)


class TestPurity:
    def test_composing_changes_nothing_it_was_given(self) -> None:
        first = OmegaConf.to_yaml(compose(spec(), CPU, PATHS))
        compose(spec(verlOverrides={"trainer.balance_batch": False}), CUDA, PATHS)
        assert OmegaConf.to_yaml(compose(spec(), CPU, PATHS)) == first

    def test_it_imports_no_engine(self) -> None:
        code = (
            "import sys\n"
            "from dapo_core.jobspec import load_job\n"
            "from dapo_trainer.verl_config import Paths, Placement, compose\n"
            f"job = load_job(__import__('pathlib').Path({str(EXAMPLES[0])!r}))\n"
            "compose(job.spec, Placement('cpu'), Paths('/m', ('/t',), (), '/c'))\n"
            "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
        )
        loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        assert not {"torch", "verl", "ray", "vllm", "transformers", "transfer_queue"} & set(loaded)


def test_b3_without_periodic_checkpoints_the_last_step_is_saved() -> None:
    """verl saves if `save_freq > 0 and (is_last_step or step % save_freq == 0)`."""
    every = value(compose(spec(schedule={"checkpointEvery": 0, "steps": 10_000_000}), CPU, PATHS), "trainer.save_freq")
    assert every > 10_000_000


@pytest.mark.parametrize("asked", ["cpu", "cuda"])
def test_the_device_may_be_chosen(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setenv("DAPO_DEVICE", asked)
    assert detect_device() == asked


def test_an_unknown_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAPO_DEVICE", "tpu")
    with pytest.raises(SpecError, match=r"DAPO_DEVICE is 'tpu': set it to cpu or cuda\."):
        detect_device()
