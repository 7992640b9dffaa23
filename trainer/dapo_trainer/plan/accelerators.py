"""The GPUs that an estimate can be made for, by their makers' data sheets."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

GIB: Final = 1024**3


@dataclass(frozen=True)
class Accelerator:
    """`memory_gib`: what the driver reports; `tflops`: dense bfloat16; `bandwidth`: memory, in TB/s."""

    name: str
    memory_gib: float
    tflops: float
    bandwidth: float

    @property
    def memory(self) -> float:
        """In bytes."""
        return self.memory_gib * GIB


_ALL = (
    Accelerator("a100-80gb", 80.0, 312, 2.04),
    Accelerator("a800-80gb", 80.0, 312, 2.04),
    Accelerator("h100-80gb", 79.6, 989, 3.35),
    Accelerator("h800-80gb", 79.6, 989, 3.35),
    Accelerator("h200", 140.4, 989, 4.8),
    Accelerator("h20", 95.6, 148, 4.0),
    Accelerator("b200", 178.4, 2250, 8.0),
    Accelerator("l40s", 44.9, 362, 0.864),
)
ACCELERATORS: Final[Mapping[str, Accelerator]] = {one.name: one for one in _ALL}
DEFAULT: Final = "h100-80gb"
