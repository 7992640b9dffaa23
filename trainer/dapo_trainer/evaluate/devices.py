"""How many GPUs an evaluation can use here, told without importing torch."""

import os
from pathlib import Path

from dapo_trainer.verl_config.device import detect


def gpu_count() -> int:
    """GPUs that CUDA_VISIBLE_DEVICES lets through, else all of this machine's; 0 where it computes on processors."""
    if detect() == "cpu":
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip()])
    return max(1, len(list(Path("/dev").glob("nvidia[0-9]*"))))
