"""What the composed configuration trains with on CPUs against verl's plain path: padded rows, one mask, SDPA."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import engines
import pytest
import torch
from omegaconf import OmegaConf

from dapo_core.jobspec import load_job
from dapo_trainer.verl_adapter import environment
from dapo_trainer.verl_config import Paths, Placement, compose

JOB = Path(__file__).parents[2] / "examples" / "arithmetic.yaml"
RESPONSES, VOCABULARY = 12, 64
MODEL = "actor_rollout_ref.model."
ACTOR = "actor_rollout_ref.actor."
# verl's own: padded to the longest response, a mask of all tokens, and three responses at a time.
PLAIN = {
    f"{MODEL}use_remove_padding": False,
    f"{MODEL}override_config.attn_implementation": "sdpa",
    f"{ACTOR}use_dynamic_bsz": False,
    f"{ACTOR}ppo_micro_batch_size_per_gpu": 3,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 3,
}
# What a GPU computes log-probs by.
CHUNKED = {f"{MODEL}use_fused_kernels": True}
# So few that a mini-batch is several passes.
SMALL_PASSES = {f"{ACTOR}ppo_max_token_len_per_gpu": 160}


@pytest.fixture(autouse=True)
def process_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Of one rank, as verl's worker finds it."""
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # asked for, and not used: the group exists
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"} | master
    for name, text in {**environment("cpu"), **ranks}.items():
        monkeypatch.setenv(name, text)
    engines.load("verl.workers.engine_workers")
    engines.load("dapo_trainer.verl_adapter.rank_extensions")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two layers in which two heads share one of keys; saved with a tokenizer, which verl loads with it."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from dapo_trainer.demo.warm_start import tokenizer

    # verl replaces it for log-probs by chunks, and for the whole process.
    monkeypatch.setattr(Qwen2ForCausalLM, "forward", Qwen2ForCausalLM.forward)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer()),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    Qwen2ForCausalLM(config).save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def worker(model: str, changes: dict[str, Any]) -> Any:
    """verl's worker of an FSDP rank, configured as `ActorRolloutRefWorker` does it."""
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config import TrainingWorkerConfig
    from verl.workers.engine_workers import TrainingWorker
    from verl.workers.utils.losses import ppo_loss

    whole = compose(load_job(JOB).spec, Placement("cpu"), Paths(model, ("/t",), (), "/c"))
    for key, value in changes.items():
        OmegaConf.update(whole, key, value, merge=False)
    config = whole.actor_rollout_ref
    settings = omega_conf_to_dataclass(config.model)
    actor = omega_conf_to_dataclass(config.actor)
    actor.model_config = settings
    actor.engine.use_dynamic_bsz = config.actor.use_dynamic_bsz
    actor.engine.max_token_len_per_gpu = config.actor.ppo_max_token_len_per_gpu
    actor.engine.micro_batch_size_per_gpu = config.actor.ppo_micro_batch_size_per_gpu
    actor.engine.infer_max_token_len_per_gpu = config.rollout.log_prob_max_token_len_per_gpu
    actor.engine.infer_micro_batch_size_per_gpu = config.rollout.log_prob_micro_batch_size_per_gpu
    made = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=settings,
            engine_config=actor.engine,
            optimizer_config=actor.optim,
            checkpoint_config=actor.checkpoint,
        )
    )
    made.reset()
    made.set_loss_fn(partial(ppo_loss, config=actor))
    return made


def batch() -> Any:
    """Responses of 1 to 60 tokens with the fields of verl's queue."""
    from tensordict import TensorDict

    torch.manual_seed(1)
    lengths = [1, 60, *(Random(0).randint(2, 60) for _ in range(RESPONSES - 2))]
    prompts = [torch.randint(0, VOCABULARY, (size,)) for size in Random(1).choices(range(1, 8), k=RESPONSES)]
    responses = [torch.randint(0, VOCABULARY, (length,)) for length in lengths]
    whole = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    rows = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": whole,
        "position_ids": [torch.arange(len(row)) for row in whole],
        "response_mask": [torch.ones_like(response) for response in responses],
        "loss_mask": [torch.ones_like(response) for response in responses],
        "advantages": [torch.randn(1).repeat(length) for length in lengths],
    }
    fields = {name: torch.nested.as_nested_tensor(row, layout=torch.jagged) for name, row in rows.items()}
    return TensorDict(fields, batch_size=RESPONSES)


def told(data: Any, **values: Any) -> Any:
    from verl.utils import tensordict_utils

    data = data.clone()
    tensordict_utils.assign_non_tensor(data, temperature=1.0, global_token_num=None, **values)
    return data


def trained(model: str, changes: dict[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any], dict[str, Any]]:
    """Log-probs and entropies of the responses' tokens, metrics of two updates, and the weights after them."""
    from verl.workers.utils.padding import response_from_nested

    rank, data = worker(model, changes), batch()
    found = rank.infer_batch(told(data, calculate_entropy=True, compute_loss=False))
    tokens = {name: response_from_nested(found[name], data["response_mask"]) for name in ("log_probs", "entropy")}
    data["old_log_probs"] = tokens["log_probs"]
    size = RESPONSES // 2
    how = {"mini_batch_size": size, "global_batch_size": size, "epochs": 1, "seed": 0}
    more = {"calculate_entropy": False, "distillation_use_topk": False, "distillation_only": False}
    output = rank.train_mini_batch(told(data, dataloader_kwargs={"shuffle": False}, **how, **more))
    weights = {name: part.full_tensor() for name, part in rank.engine.module.state_dict().items()}
    return {name: part.values() for name, part in tokens.items()}, dict(output["metrics"]), weights


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="one pass"),
        pytest.param(SMALL_PASSES, id="several passes, sized by tokens"),
        pytest.param(CHUNKED, id="log-probs by chunks, of a head that FSDP shards"),
    ],
)
def test_log_probs_entropies_and_updates_are_those_of_verls_plain_path(model: str, changes: dict[str, Any]) -> None:
    assert os.environ["VERL_PLATFORM"] == "cpu"
    plain_tokens, plain_metrics, plain_weights = trained(model, PLAIN)
    tokens, metrics, weights = trained(model, changes)
    torch.testing.assert_close(tokens, plain_tokens, atol=1e-5, rtol=1e-5)
    assert sum(metrics["grad_norm"]) == pytest.approx(sum(plain_metrics["grad_norm"]), rel=1e-4)
    assert sum(metrics["loss"]) == pytest.approx(sum(plain_metrics["loss"]), abs=1e-5)
    moved = torch.cat([(plain_weights[name] - part).abs().flatten() for name, part in weights.items()])
    # Adam's first steps are as large for a gradient of rounding errors as for any other: up to the learning rate.
    assert moved.median() < 1e-6
