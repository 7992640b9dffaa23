"""What connects GPUs, and how fast an all-reduce over it should be: NVLink, PCIe, RDMA devices. Parsing is pure."""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dapo_trainer.doctor.check import Check, ok, warning
from dapo_trainer.doctor.gpus import TIMEOUT_SECONDS, Gpu

INFINIBAND: Final = Path("/sys/class/infiniband")
_LINK: Final = re.compile(r"Link \d+:\s*([0-9.]+) GB/s")
_RATE: Final = re.compile(r"([0-9.]+)\s*Gb/sec")
# Share of a link's nominal rate that NCCL's ring reaches at least on a healthy machine, for large messages.
NVLINK_SHARE: Final = 0.5
PCIE_SHARE: Final = 0.25
RDMA_SHARE: Final = 0.5


@dataclass(frozen=True)
class Fabric:
    """`gb`: GB/s that an all-reduce should reach at least, None when there is nothing to compare with."""

    name: str
    gb: float | None


@dataclass(frozen=True)
class RdmaDevice:
    """An active port of an RDMA device; `gb`: its nominal rate in GB/s."""

    name: str
    gb: float


def within(gpus: Sequence[Gpu]) -> Fabric:
    """What connects the GPUs of this machine."""
    links = nvlink_gb(_nvlink())
    if links:
        return Fabric(f"NVLink at {links:.0f} GB/s", links * NVLINK_SHARE)
    rates = [gpu.pcie_gb for gpu in gpus if gpu.pcie_gb is not None]
    return Fabric(f"PCIe at {min(rates):.0f} GB/s", min(rates) * PCIE_SHARE) if rates else Fabric("unknown", None)


def between(devices: Sequence[RdmaDevice]) -> Fabric:
    """What connects this machine with others."""
    if not devices:
        return Fabric("TCP", None)
    rate = sum(device.gb for device in devices)
    return Fabric(f"{len(devices)} RDMA devices at {rate:.0f} GB/s in total", rate * RDMA_SHARE)


def _nvlink() -> str:
    command = ["nvidia-smi", "nvlink", "-s"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def nvlink_gb(text: str) -> float:
    """One direction of all active links of the first GPU, in GB/s, from `nvidia-smi nvlink -s`; 0 without links."""
    first = text.split("GPU 1:")[0]
    return sum(float(rate) for rate in _LINK.findall(first))


def rdma_devices(folder: Path = INFINIBAND) -> Sequence[RdmaDevice]:
    """The active ports that this container can see."""
    found = []
    for port in sorted(folder.glob("*/ports/*")):
        try:
            state, rate = (port / "state").read_text(), _RATE.search((port / "rate").read_text())
        except OSError:
            continue
        if "ACTIVE" in state and rate is not None:
            found.append(RdmaDevice(port.parent.parent.name, float(rate.group(1)) / 8))
    return found


def rdma(devices: Sequence[RdmaDevice], usable: bool, several_nodes: bool) -> Check:
    """`usable`: whether /dev/infiniband is in the container, without which NCCL falls back to TCP."""
    if devices and usable:
        return ok("RDMA", f"{', '.join(device.name for device in devices)}")
    found = "devices of the node, but not in this container" if devices else "no device"
    if not several_nodes:
        return ok("RDMA", f"{found}; not needed on one node")
    return warning("RDMA", f"{found}: NCCL uses TCP", "request RDMA devices in the podTemplate (docs/install.md)")
