"""verl's FSDP engine, which also loads checkpoints of another number of ranks, merges adapters without rounding, and
reports the learning rate and the clipped tokens of the updates that it made.

verl chooses an engine by model type, strategy, device and vendor; this one has a vendor of its own, which
`dapo_trainer.verl_adapter.environment` asks for. verl rounds merged weights, and only these, to bfloat16: engines of
another dtype would sample from another policy than the trainer's.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from tensordict import TensorDict
from torch.distributed.tensor import DTensor
from verl.utils.device import get_device_id
from verl.utils.fsdp_utils import merged_lora_context, normalize_peft_param_name, offload_fsdp_model_to_cpu
from verl.utils.metric.utils import Metric
from verl.utils.model import convert_weight_keys
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from dapo_core.run.metrics import CLIP_FRACTION_HIGH, CLIP_FRACTION_LOW
from dapo_trainer.verl_adapter import ENGINE_VENDOR, clip_marks
from dapo_trainer.verl_adapter.checkpoint_parts import parts
from dapo_trainer.verl_adapter.resharding import reshard, saved_ranks

_UNUSED: Final = ("num_turns", "rm_scores")
_IMAGES: Final = "multi_modal_inputs"  # an empty mapping for each row of text


def merged_weights(engine: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Each weight under the name it has without adapters, whole, on the trainer's device. Collective over the ranks."""
    try:
        with merged_lora_context(engine.module, backup_adapters=True):
            named = convert_weight_keys(normalize_peft_param_name(engine.module.state_dict()), engine.module)
            for name, weight in named.items():
                whole = weight.to(get_device_id()).full_tensor() if isinstance(weight, DTensor) else weight
                # A copy: with the last weight taken, the context takes the adapters out again in place.
                yield name, whole.detach().clone()
    finally:
        if engine._is_offload_param:
            offload_fsdp_model_to_cpu(engine.module)


def without_unused(batch: TensorDict) -> TensorDict:
    """`batch` without what no model and no loss reads: verl divides and moves these row by row, in Python."""
    unused = [*_UNUSED]
    if clip_marks.ASKED not in batch.keys():
        unused.append("uid")
    if _IMAGES in batch.keys() and not any(batch.get(_IMAGES).tolist()):
        unused.append(_IMAGES)
    return batch.exclude(*unused)


@EngineRegistry.register("language_model", backend="fsdp2", device="cuda", vendor=ENGINE_VENDOR)
class ShardedEngine(FSDPEngineWithLMHead):
    """FSDP2 as verl runs it."""

    def load_checkpoint(self, local_path: str, *args: Any, **kwargs: Any) -> None:
        """Load what is asked for (`checkpoint_parts`). Raises CheckpointError when the shards of other ranks do not
        fit."""
        with self._only(parts()) as loaded:
            ranks, folder = torch.distributed.get_world_size(), Path(local_path)
            if saved_ranks(folder) in (None, ranks):
                super().load_checkpoint(local_path, *args, **kwargs)
                return
            files = reshard(folder, torch.distributed.get_rank(), ranks, self.module, self.optimizer, loaded)
            super().load_checkpoint(local_path, *args, **kwargs)
            for file in files:
                file.unlink(missing_ok=True)

    @contextmanager
    def _only(self, asked: Collection[str]) -> Iterator[Sequence[str]]:
        """Of what the job loads, load what is asked for."""
        manager = self.checkpoint_manager
        configured = manager.checkpoint_load_contents
        manager.checkpoint_load_contents = [part for part in configured if part in asked]
        try:
            yield manager.checkpoint_load_contents
        finally:
            manager.checkpoint_load_contents = configured

    def forward_backward_batch(self, data: TensorDict, *args: Any, **kwargs: Any) -> Any:
        """The shares of clipped tokens are summed over the parts of a mini-batch; verl takes the mean of the parts."""
        output = super().forward_backward_batch(without_unused(data), *args, **kwargs)
        for name in (CLIP_FRACTION_HIGH, CLIP_FRACTION_LOW):
            if name in output["metrics"]:
                parts, output["metrics"][name] = output["metrics"][name].values, Metric("sum")
                output["metrics"][name].extend(parts)
        return output

    def forward_step(self, micro_batch: Any, loss_function: Any, forward_only: bool) -> Any:
        """Keeps which tokens the loss clipped, of responses that are recorded."""
        result = super().forward_step(micro_batch, loss_function, forward_only)
        clip_marks.keep(micro_batch)
        return result

    def lr_scheduler_step(self) -> float:
        """Returns the learning rate of the update before; verl's is that of the next one."""
        used: float = self.lr_scheduler.get_last_lr()[0]
        super().lr_scheduler_step()
        return used

    def _merged_lora_per_tensor_param(self) -> Iterator[tuple[str, torch.Tensor]]:
        return merged_weights(self)
