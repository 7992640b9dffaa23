"""What our FSDP engine reports of an update, over a real optimizer and verl's own aggregation."""

from types import ModuleType
from typing import Any

import engines
import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from dapo_core.run.metrics import CLIP_FRACTION_HIGH


@pytest.fixture
def adapter() -> ModuleType:
    return engines.load("dapo_trainer.verl_adapter.sharded_engine")


def test_b15_the_learning_rate_is_that_of_the_step_that_was_made(adapter: ModuleType) -> None:
    engine: Any = object.__new__(adapter.ShardedEngine)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    engine.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 2))
    used, reported = [], []
    for _ in range(4):
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        reported.append(engine.lr_scheduler_step())
    assert reported == used == [0.0, 0.5, 1.0, 1.0]


def test_b15_clipped_tokens_are_summed_over_the_parts_of_a_mini_batch(
    adapter: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl.utils.metric.utils import Metric

    parts = {CLIP_FRACTION_HIGH: Metric("mean"), "actor/ppo_kl": Metric("mean")}
    for metric in parts.values():
        metric.extend([0.1, 0.2])
    monkeypatch.setattr(adapter.FSDPEngineWithLMHead, "forward_backward_batch", lambda *_: {"metrics": parts})
    made = object.__new__(adapter.ShardedEngine).forward_backward_batch(TensorDict())["metrics"]
    assert made[CLIP_FRACTION_HIGH].aggregate() == pytest.approx(0.3)
    assert made["actor/ppo_kl"].aggregate() == pytest.approx(0.15)


ROWS = {"uid": ("a", "b"), "num_turns": (2, 2), "rm_scores": (1.0, 0.0), "multi_modal_inputs": ({}, {})}


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        pytest.param({}, set(), id="texts"),
        pytest.param({"recorded_uids": "a"}, {"uid", "recorded_uids"}, id="recorded ones are known by their prompts"),
        pytest.param({"multi_modal_inputs": ({"pixel_values": 1}, {})}, {"multi_modal_inputs"}, id="with images"),
    ],
)
def test_ranks_divide_only_what_a_model_or_a_loss_reads(
    adapter: ModuleType, more: dict[str, Any], kept: set[str]
) -> None:
    batch = TensorDict({"input_ids": torch.zeros(2, 3)}, batch_size=2)
    for name, values in (ROWS | more).items():
        batch[name] = NonTensorStack(*values) if isinstance(values, tuple) else values
    needed = adapter.without_unused(batch)
    assert set(needed.keys()) == {"input_ids"} | kept
    assert adapter.clip_marks.ASKED == "recorded_uids" and batch["uid"] == ["a", "b"]
