"""vLLM's view of a GPU that is described and not there, so that its configuration can be made on any machine."""

from typing import Any

from dapo_trainer.plan.memory import GpuKind

# Compute capabilities by the start of the name in `dapo plan`; what they compute with is decided by these.
_CAPABILITIES = {"a100": (8, 0), "a800": (8, 0), "l40s": (8, 9), "h": (9, 0), "b200": (10, 0)}


def describe(gpu: GpuKind) -> None:
    """From now on vLLM takes `gpu` for what this process runs on. Call it before other parts of vLLM are imported.

    Raises ImportError where vLLM's CUDA build is not installed, or a library that it is linked with.
    """
    import vllm.platforms as platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    capability = next(numbers for start, numbers in _CAPABILITIES.items() if gpu.name.startswith(start))

    class DescribedGpu(NonNvmlCudaPlatform):
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return DeviceCapability(*capability)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return gpu.name

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return int(gpu.memory)

        @classmethod
        def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:
            return True

    platforms._current_platform = DescribedGpu()
