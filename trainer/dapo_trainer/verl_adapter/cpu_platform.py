"""verl's platform `cpu`: trainer and rollout on processors. Chosen by VERL_PLATFORM=cpu; inert otherwise.

verl loads this module in every process that imports it (entry point `verl.plugins`), so it stays light.
"""

import contextlib
import os
import resource
import types
from collections.abc import Iterator
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _resident_bytes(*_: Any) -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _device_module() -> types.ModuleType:
    """The part of `torch.cuda`'s surface that verl calls on a device module, answered for one processor."""
    module = types.ModuleType("dapo_cpu_device")
    nothing = {"set_device", "synchronize", "empty_cache", "ipc_collect", "reset_peak_memory_stats"}
    memory = {"max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"}
    vars(module).update(
        {name: lambda *_, **__: None for name in nothing}
        | dict.fromkeys(memory, _resident_bytes)
        | {
            "is_available": lambda: False,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "mem_get_info": lambda *_: (0, 0),
            "get_device_name": lambda *_: "cpu",
            "manual_seed": torch.manual_seed,
            "manual_seed_all": torch.manual_seed,
            "get_rng_state": torch.get_rng_state,
            "set_rng_state": torch.set_rng_state,
            "Stream": torch.cpu.Stream,
            "Event": torch.Event,
            "stream": torch.cpu.stream,
            "current_stream": torch.cpu.current_stream,
        }
    )
    return module


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """Logical accelerators: Ray hands out `GPU` slots that stand for a share of the processor."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device_module()

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # never picked by detection: a GPU machine whose driver failed must not train on its processors

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "DAPO_CPU_SLOTS"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False  # verl then moves weights to a colocated engine through POSIX shared memory

    def rollout_env_vars(self) -> dict[str, str]:
        return {}

    def cudart(self) -> None:
        return None


def _accept_repeated_backends() -> None:
    """verl names torch's process group `cpu:gloo,cpu:gloo`, one entry a device type; torch refuses the repetition."""
    original = torch.distributed.init_process_group

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return original(",".join(dict.fromkeys(backend.split(","))) if backend else None, *args, **kwargs)

    torch.distributed.init_process_group = init_process_group


def _offload_without_pinning() -> None:
    """verl keeps the reference model's shards in pinned memory, and torch pins for an accelerator that is not there."""
    from torch.distributed import fsdp

    class Unpinned(fsdp.CPUOffloadPolicy):
        def __init__(self, pin_memory: bool = False) -> None:
            super().__init__(pin_memory=False)

    fsdp.CPUOffloadPolicy = Unpinned


def _copy_what_is_saved() -> None:
    """verl keeps the old policy of a step by `.cpu()`, which copies nothing here: it would change with every update."""
    from verl.utils import fsdp_utils

    original = fsdp_utils.fsdp2_sharded_save_to_cpu

    def fsdp2_sharded_save_to_cpu(model: torch.nn.Module) -> tuple[dict[str, tuple[torch.Tensor, Any]], Any]:
        state, spec = original(model)
        return {name: (tensor.clone(), placed) for name, (tensor, placed) in state.items()}, spec

    fsdp_utils.fsdp2_sharded_save_to_cpu = fsdp2_sharded_save_to_cpu


if os.environ.get("VERL_PLATFORM") == "cpu":
    from dapo_trainer.verl_adapter import cpu_vllm
    from dapo_trainer.verl_adapter.import_hooks import before_import

    _accept_repeated_backends()
    before_import("verl.utils.fsdp_utils", _offload_without_pinning)
    before_import("verl.experimental.separation.engine_workers", _copy_what_is_saved)
    cpu_vllm.install()
