"""What this machine computes on, told without importing torch."""

import os
from pathlib import Path

from dapo_core.errors import Problem, SpecError
from dapo_trainer.verl_config.placement import Device


def detect() -> Device:
    """`DAPO_DEVICE` (cpu or cuda), else cuda where an NVIDIA device node is, else cpu."""
    asked = os.environ.get("DAPO_DEVICE")
    if asked is None:
        return "cuda" if Path("/dev/nvidia0").exists() else "cpu"
    if asked not in ("cpu", "cuda"):
        raise SpecError([Problem("DAPO_DEVICE", f"DAPO_DEVICE is {asked!r}: set it to cpu or cuda.")])
    return "cuda" if asked == "cuda" else "cpu"
