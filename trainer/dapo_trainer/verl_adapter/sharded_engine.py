"""verl's FSDP engine, which also loads checkpoints of another number of ranks, merges adapters without rounding, and
reports the learning rate and the clipped tokens of the updates that it made.

verl chooses an engine by model type, strategy, device and vendor; this one has a vendor of its own, which
`dapo_trainer.verl_adapter.environment` asks for.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from verl.utils.metric.utils import Metric
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from dapo_core.run.metrics import CLIP_FRACTION_HIGH, CLIP_FRACTION_LOW
from dapo_trainer.verl_adapter import ENGINE_VENDOR
from dapo_trainer.verl_adapter.adapters import merged_weights
from dapo_trainer.verl_adapter.resharding import reshard, saved_ranks


@EngineRegistry.register("language_model", backend="fsdp2", device="cuda", vendor=ENGINE_VENDOR)
class ShardedEngine(FSDPEngineWithLMHead):
    """FSDP2 as verl runs it."""

    def load_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
        """Raises CheckpointError when the shards of other ranks do not fit."""
        ranks, folder = torch.distributed.get_world_size(), Path(local_path)
        if saved_ranks(folder) in (None, ranks):
            super().load_checkpoint(local_path, *args, **kwargs)
            return
        files = reshard(folder, torch.distributed.get_rank(), ranks, self.module, self.optimizer)
        super().load_checkpoint(local_path, *args, **kwargs)
        for file in files:
            file.unlink(missing_ok=True)

    def forward_backward_batch(self, *args: Any, **kwargs: Any) -> Any:
        """The shares of clipped tokens are summed over the parts of a mini-batch; verl takes the mean of the parts."""
        output = super().forward_backward_batch(*args, **kwargs)
        for name in (CLIP_FRACTION_HIGH, CLIP_FRACTION_LOW):
            if name in output["metrics"]:
                parts, output["metrics"][name] = output["metrics"][name].values, Metric("sum")
                output["metrics"][name].extend(parts)
        return output

    def lr_scheduler_step(self) -> float:
        """Returns the learning rate of the update before; verl's is that of the next one."""
        used: float = self.lr_scheduler.get_last_lr()[0]
        super().lr_scheduler_step()
        return used

    def _merged_lora_per_tensor_param(self) -> Iterator[tuple[str, torch.Tensor]]:
        return merged_weights(self)
