"""Each check of `dapo check` fails for what it is there for; `make gpu-check` is where all of them pass."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import engines
import pytest
from builders import job
from omegaconf import DictConfig, OmegaConf

from dapo_core.jobspec import DAPOJob, DAPOJobSpec, load_job
from dapo_trainer.check import command
from dapo_trainer.plan.architecture import KNOWN, config_json
from dapo_trainer.plan.memory import GPUS
from dapo_trainer.verl_config import Paths, Placement, compose

EXAMPLES = Path(__file__).parents[2] / "examples"
ATTENTION = "actor_rollout_ref.model.override_config.attn_implementation"
RANKS = "actor_rollout_ref.actor.ulysses_sequence_parallel_size"
ROLLOUT = "actor_rollout_ref.rollout"


@pytest.fixture(scope="module")
def checks() -> ModuleType:
    for part in ("rank_extensions", "group_server", "tcp_transport"):
        engines.load(f"dapo_trainer.verl_adapter.{part}")
    return engines.load("dapo_trainer.verl_adapter.stack_checks")


@pytest.fixture
def composed(checks: ModuleType, tmp_path: Path) -> Callable[..., DictConfig]:
    """verl's configuration of a job with a small model, of which there is only a config.json."""
    (tmp_path / "config.json").write_text(json.dumps(config_json(KNOWN["Qwen2.5-0.5B"], 32_768)))
    paths = Paths(model=str(tmp_path), train=("/t",), validation=(), checkpoints="/c")

    def make(device: Any = "cuda", after: dict[str, Any] | None = None, **groups: Any) -> DictConfig:
        config = checks.without_tokenizer(compose(job(**groups).spec, Placement(device), paths))
        for key, value in (after or {}).items():
            OmegaConf.update(config, key, value, force_add=True)
        return config

    return make


def test_verl_refuses(checks: ModuleType, composed: Callable[..., DictConfig]) -> None:
    assert checks.verl_accepts(composed()) == "accepted by verl 0.9.1"
    seen = command.attempted("configuration", lambda: checks.verl_accepts(composed(after={
        "actor_rollout_ref.actor.loss_agg_mode": "token-median"
    })))  # fmt: skip
    assert not seen.passed and "token-median" in seen.seen


@pytest.mark.parametrize(
    ("after", "words"),
    [
        pytest.param(
            {ATTENTION: "flash_attention_2"}, "FlashAttention2", id="G1: verl's default, whose package is not there"
        ),
        pytest.param({ATTENTION: "never_registered"}, "never_registered", id="a name that is not registered"),
        pytest.param({RANKS: 4}, "divisible", id="ranks that do not divide 14 heads"),
    ],
)
def test_a_model_that_cannot_be_built(
    checks: ModuleType, composed: Callable[..., DictConfig], after: dict[str, Any], words: str
) -> None:
    seen = command.attempted("model", lambda: checks.model_builds(composed(after=after)))
    assert not seen.passed and words in seen.seen, seen


def test_a_model_that_can(checks: ModuleType, composed: Callable[..., DictConfig]) -> None:
    built = checks.model_builds(composed(after={RANKS: 2}))
    assert built == "Qwen2ForCausalLM, 494,032,768 weights, attention dapo_varlen, 2 rank(s) to a response"


def test_g2_weight_transfer_whose_package_is_missing(checks: ModuleType, composed: Callable[..., DictConfig]) -> None:
    """This environment, for processors, is what the one for GPUs was: without cupy."""
    separated = composed(topology={"mode": "Separated"})
    seen = command.attempted("weight transfer", lambda: checks.weights_are_transferred(separated))
    assert not seen.passed and "nccl not registered" in seen.seen
    assert checks.weights_are_transferred(composed()) == "naive: ColocatedCheckpointEngine"


def test_vllm_refuses(checks: ModuleType, composed: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's build for processors makes its configuration like the other."""
    for name, value in engines.environment("cpu").items():
        monkeypatch.setenv(name, value)
    small = {f"{ROLLOUT}.max_model_len": 4096}
    assert "4,096 tokens" in checks.vllm_accepts(composed("cpu", after=small))
    wide = {**small, f"{ROLLOUT}.tensor_model_parallel_size": 4}
    seen = command.attempted("vLLM", lambda: checks.vllm_accepts(composed("cpu", after=wide)))
    assert not seen.passed and "divisible by tensor parallel size" in seen.seen


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"VLLM_USE_V2_MODEL_RUNNER": "1"}, "VLLM_USE_V2_MODEL_RUNNER=1", id="G6: the other model runner"),
        pytest.param({"NCCL_DEBUG": "TRACE"}, "NCCL_DEBUG=TRACE", id="NCCL"),
    ],
)
def test_an_environment_that_is_not_a_runs(
    checks: ModuleType, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], words: str
) -> None:
    for name, value in (checks.environment("cuda") | change).items():
        monkeypatch.setenv(name, value)
    seen = command.attempted("environment", checks.environment_is_known)
    assert not seen.passed and words in seen.seen


def test_a_variable_that_vllm_does_not_know(checks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "environment", lambda _: {"VLLM_RENAMED": "1"})
    assert "does not know VLLM_RENAMED" in command.attempted("environment", checks.environment_is_known).seen


def test_a_module_that_does_not_import(checks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MODULES", ("json", "flash_attn"))
    seen = command.attempted("modules", checks.modules_import)
    assert seen == command.Checked("modules", False, "ModuleNotFoundError: No module named 'flash_attn'")


# ---- without an engine --------------------------------------------------------------------------------------------


def paper(**topology: Any) -> DAPOJob:
    given = load_job(EXAMPLES / "qwen2.5-32b-aime.yaml")
    spec = given.spec.model_dump(by_alias=True, mode="json", exclude_none=True)
    spec["topology"] |= topology
    return given.model_copy(update={"spec": DAPOJobSpec.model_validate(spec)})


def memory(given: DAPOJob) -> command.Checked:
    config = compose(given.spec, Placement("cuda"), command.planned_paths(given))
    return command.attempted("memory", lambda: command._memory(given, config, GPUS["h100-80gb"]))


def test_g4_memory_with_its_arithmetic() -> None:
    fits, small = memory(paper()), memory(paper(head={"resources": {"memory": "16Gi"}}))
    assert fits.passed and "head: queue " in fits.seen and " GiB of 48Gi" in fits.seen
    assert not small.passed and "raise spec.topology.head.resources.memory" in small.seen


@pytest.mark.parametrize(
    ("source", "passed"),
    [
        pytest.param("hf://Qwen/Qwen2.5-7B", True, id="fits"),
        pytest.param("hf://Qwen/Qwen2.5-Math-7B", False, id="S4: 22,528 tokens of 4,096"),
    ],
)
def test_s4_the_context_of_the_model(source: str, passed: bool) -> None:
    given = job(model={"source": source})
    assert command.attempted("context", lambda: command._context(given)).passed == passed


@pytest.mark.parametrize("scheme", ["file", "hf"])
@pytest.mark.parametrize(
    ("change", "passed", "words"),
    [
        pytest.param({"max_position_embeddings": 2048}, False, "the model's context of 2048 tokens", id="too short"),
        pytest.param({"max_position_embeddings": 65_536}, True, "of the model's 65,536", id="long enough"),
        pytest.param({"rope_scaling": {"rope_type": "yarn"}}, True, "names no number", id="scaled"),
    ],
)
def test_a_config_json_at_hand_says_more_than_the_table(
    scheme: str, change: dict[str, Any], passed: bool, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a folder, and of a hub's repository that was fetched before, whose name is one of the table's."""
    config = config_json(KNOWN["Qwen2.5-0.5B"], 40_000) | change
    folder = tmp_path / "models--Qwen--Qwen2.5-7B" / "snapshots" / ("0" * 40)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder.parents[1] / "refs").mkdir()
    (folder.parents[1] / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    given = job(model={"source": f"file://{folder}" if scheme == "file" else "hf://Qwen/Qwen2.5-7B"})
    seen = command.attempted("context", lambda: command._context(given))
    assert seen.passed == passed and words in seen.seen, seen
    assert command.architecture(given) == KNOWN["Qwen2.5-0.5B"]
    assert command._model_folder(given, tmp_path) == str(folder)


def test_g3_a_configuration_that_is_refused_ends_the_checks_of_its_job() -> None:
    given = paper()
    given.spec.verl_overrides[ATTENTION] = "sdpa"
    seen = list(command._job(given, GPUS["h100-80gb"]))
    assert [(line.name, line.passed) for line in seen] == [("configuration", False)]
    assert "its own part of a response" in seen[0].seen


def test_failures_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [command.Checked("one", True, "fine"), command.Checked("two", False, "not so")]
    assert command._print(command.Console(), "packages", lines) == 1
    assert "FAILED" in capsys.readouterr().out
