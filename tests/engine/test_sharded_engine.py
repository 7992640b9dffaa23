"""What our FSDP engine reports of an update, over a real optimizer and verl's own aggregation."""

from types import ModuleType
from typing import Any

import engines
import pytest
import torch

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
    made = object.__new__(adapter.ShardedEngine).forward_backward_batch()["metrics"]
    assert made[CLIP_FRACTION_HIGH].aggregate() == pytest.approx(0.3)
    assert made["actor/ppo_kl"].aggregate() == pytest.approx(0.15)
