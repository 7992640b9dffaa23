"""verl's own advantages of a batch, where the overlong filter leaves some of its tokens and where it leaves none."""

from types import ModuleType
from typing import Any

import engines
import pytest
import torch
from omegaconf import OmegaConf
from verl_algorithm import VERL_ALGORITHM

LENGTHS = (3, 2)
CONFIG = {
    "algorithm": VERL_ALGORITHM,
    "actor_rollout_ref": {"rollout": {"n": len(LENGTHS)}},
}


class Queue:
    """The data queue's two calls, over one batch held here."""

    def __init__(self, rows: Any) -> None:
        self.rows, self.put = rows, dict[str, torch.Tensor]()

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> Any:
        return self.rows.select(*select_fields, strict=False)

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: Any) -> Any:
        self.put = {name: fields[name].values() for name in fields.keys()}
        from transfer_queue import KVBatchMeta

        return KVBatchMeta(keys, [{} for _ in keys], partition_id, list(fields.keys()))


def nested(*rows: list[float]) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


@pytest.fixture
def trainers() -> ModuleType:
    return engines.load("dapo_trainer.verl_adapter.trainers")


@pytest.mark.parametrize(
    ("mask", "weighed"),
    [
        pytest.param(([1.0, 1.0, 1.0], [1.0, 1.0]), True, id="all count"),
        pytest.param(([0.0, 0.0, 0.0], [1.0, 1.0]), True, id="one response is masked"),
        pytest.param(([0.0, 0.0, 0.0], [0.0, 0.0]), False, id="none counts"),
    ],
)
def test_advantages(
    trainers: ModuleType, monkeypatch: pytest.MonkeyPatch, mask: tuple[list[float], list[float]], weighed: bool
) -> None:
    from tensordict import NonTensorStack, TensorDict

    rows = {
        "response_mask": nested(*mask),
        "rm_scores": nested([0.0, 0.0, 1.0], [0.0, -1.0]),
        "rollout_log_probs": nested([-0.5, -0.5, -0.5], [-1.0, -1.0]),
        "old_log_probs": nested([-0.4, -0.6, -0.5], [-1.1, -0.9]),
        "entropy": nested([0.3, 0.5, 0.4], [1.0, 0.8]),
        "uid": NonTensorStack("p0", "p0"),
    }
    queue = Queue(TensorDict(rows, batch_size=len(LENGTHS)))
    for module in (trainers, engines.load("verl.trainer.ppo.v1.trainer_base")):
        monkeypatch.setattr(module, "tq", queue)
    trainer = object.__new__(trainers.Colocated)
    trainer.config = OmegaConf.create(CONFIG)
    tags = [{"response_len": len(row), "loss_tokens": int(sum(row))} for row in mask]
    batch = trainers.KVBatchMeta(partition_id="train", keys=["p0_0_0", "p0_1_0"], tags=tags)
    metrics: dict[str, Any] = {}
    trainers._describe_policy(batch, metrics)
    assert ("dapo/mean_probability" in metrics) == weighed
    if weighed:  # by token, however the loss averages
        entropies, kept = rows["entropy"].values(), rows["response_mask"].values()
        assert metrics["actor/entropy"] == pytest.approx(((entropies * kept).sum() / kept.sum()).item())
        trainers._describe_policy(batch, metrics, of_rollout=True)
        surprise = -rows["old_log_probs"].values()
        assert metrics["actor/entropy"] == pytest.approx(((surprise * kept).sum() / kept.sum()).item())
    trainer._compute_advantage(batch, metrics)
    assert torch.isfinite(queue.put["advantages"]).all()
    assert ("rollout_is_weights" in queue.put) == weighed == any(name.startswith("rollout_corr/") for name in metrics)
    assert trainer.config == CONFIG, "the next batch is weighed again"


def test_b12_ratios_of_carried_responses_are_relative_to_the_policy_that_sampled_them(
    trainers: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensordict import TensorDict

    sampled = TensorDict({"rollout_log_probs": nested([-0.5, -0.7])}, batch_size=1)
    asked: list[list[str]] = []

    class Stored(Queue):
        def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> Any:
            asked.append(keys)
            return super().kv_batch_get(keys, partition_id, select_fields)

    queue = Stored(sampled)
    monkeypatch.setattr(trainers, "tq", queue)
    versions = {"old_0_0": 3, "new_0_0": 4, "pad": 3}
    tags = [{"min_global_steps": version, "is_padding": key == "pad"} for key, version in versions.items()]
    batch = trainers.KVBatchMeta(partition_id="train", keys=list(versions), tags=tags)
    assert trainers._correct_stale(batch, newest_version=4) == 0.5
    assert asked == [["old_0_0"]]
    assert queue.put["old_log_probs"].tolist() == pytest.approx([-0.5, -0.7])
    assert trainers._correct_stale(batch, newest_version=3) == 0.0 and len(asked) == 1


def test_what_is_rejected_does_not_weaken_the_rest(trainers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """verl rejects in `response_mask`, and divides the loss by the tokens of `loss_mask`."""
    from tensordict import NonTensorStack, TensorDict

    rows = {
        "response_mask": nested([1.0, 1.0, 1.0], [1.0, 1.0]),
        "loss_mask": nested([1.0, 1.0, 1.0], [1.0, 1.0]),
        "rm_scores": nested([0.0, 0.0, 1.0], [0.0, -1.0]),
        "rollout_log_probs": nested([-0.5, -0.5, -0.5], [-1.0, -1.0]),
        "old_log_probs": nested([-0.4, -2.6, -0.5], [-1.1, -0.9]),
        "uid": NonTensorStack("p0", "p0"),
    }

    class Kept(Queue):
        def kv_batch_put(self, keys: list[str], partition_id: str, fields: Any) -> Any:
            self.rows.update(fields)
            return batch

    batch = trainers.KVBatchMeta(
        partition_id="train", keys=["p0_0_0", "p0_1_0"], tags=[{"response_len": length} for length in LENGTHS]
    )
    queue = Kept(TensorDict(rows, batch_size=len(LENGTHS)))
    for module in (trainers, engines.load("verl.trainer.ppo.v1.trainer_base")):
        monkeypatch.setattr(module, "tq", queue)
    trainer = object.__new__(trainers.Colocated)
    trainer.config = OmegaConf.create(CONFIG)
    trainer.config.algorithm.rollout_correction.update({"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_2.0"})
    found: dict[str, Any] = {}
    trainer._compute_advantage(batch, found)
    for name in ("response_mask", "loss_mask"):
        assert queue.rows[name].values().tolist() == [1.0, 0.0, 1.0, 1.0, 1.0], name
    assert found["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(1 / 5)
