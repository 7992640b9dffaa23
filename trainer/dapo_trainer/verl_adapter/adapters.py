"""Weights with their LoRA adapters merged, on the way to vLLM, in the precision in which they are trained.

verl rounds merged weights, and only these, to bfloat16: engines of another dtype would sample from another policy than
the trainer's.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from verl.utils.device import get_device_id
from verl.utils.fsdp_utils import merged_lora_context, normalize_peft_param_name, offload_fsdp_model_to_cpu
from verl.utils.model import convert_weight_keys


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
