"""Starts the ranks of an all-reduce on this machine, and judges what they measure by what connects the GPUs.

How fast an all-reduce should be follows from NVLink, PCIe and RDMA devices. Parsing is pure.
"""

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from dapo_core.errors import first_line
from dapo_trainer.doctor.check import Check, failed, ok, skipped, warning
from dapo_trainer.doctor.gpus import TIMEOUT_SECONDS, Gpu
from dapo_trainer.verl_config.placement import Device

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


REDUCE_SECONDS: Final = 60.0
START_SECONDS: Final = 60.0
WITHIN: Final = "all-reduce within the node"
BETWEEN: Final = "all-reduce between nodes"
HANG_REMEDY: Final = "see 'When NCCL hangs' in docs/install.md; NCCL_DEBUG=INFO names the interface it uses"


@dataclass(frozen=True)
class Group:
    """The processes of an all-reduce: `per_node` on each of `nodes` machines; this one has the number `node`. Node 0
    listens at `host`:`port`. `meet_seconds`: how long the others may take to start."""

    device: Device
    per_node: int
    nodes: int = 1
    node: int = 0
    host: str = "127.0.0.1"
    port: int = 0
    meet_seconds: float = START_SECONDS

    @property
    def ranks(self) -> int:
        return self.per_node * self.nodes


@dataclass(frozen=True)
class Bandwidth:
    """`gb`: the slowest process's bus bandwidth in GB/s, None when one failed; `met`: whether all had started."""

    gb: float | None
    met: bool
    error: str = ""


def check(name: str, group: Group, fabric: Fabric) -> Check:
    """The bandwidth of a group, compared with what the fabric should give."""
    if group.ranks < 2:
        return skipped(name, "an all-reduce needs at least two processes")
    return judge(name, group, fabric, run(group))


def judge(name: str, group: Group, fabric: Fabric, outcome: Bandwidth) -> Check:
    """Pure. Peers that did not come may still be starting; a sum that fails or hangs would do so in training too."""
    if not outcome.met:
        found = f"the other nodes did not answer at {group.host}:{group.port} in {group.meet_seconds:.0f} s"
        return warning(name, found, "look at the other pods; check the NetworkPolicy and DNS")
    if outcome.gb is None:
        return failed(name, f"failed over {fabric.name} ({outcome.error})", HANG_REMEDY)
    found = f"{outcome.gb:.1f} GB/s over {fabric.name}, {group.ranks} processes"
    if fabric.gb is not None and outcome.gb < fabric.gb:
        return warning(name, f"{found}; {fabric.gb:.0f} GB/s expected", HANG_REMEDY)
    return ok(name, found)


def run(group: Group) -> Bandwidth:
    """Start this machine's processes, and wait for them. They are killed when they take too long."""
    port = group.port or _free_port()
    shared: Mapping[str, Any] = asdict(group) | {"port": port, "reduce_seconds": REDUCE_SECONDS}
    children = [_start(shared, group, gpu) for gpu in range(group.per_node)]
    deadline = time.monotonic() + START_SECONDS + group.meet_seconds + REDUCE_SECONDS
    answers = [_ended(child, deadline) for child in children]
    if not all(answer.met for answer in answers):
        return Bandwidth(None, met=False, error=next((answer.error for answer in answers if answer.error), ""))
    rates = [answer.gb for answer in answers if answer.gb is not None]
    if len(rates) < len(answers):
        return Bandwidth(None, met=True, error=next(answer.error for answer in answers if answer.gb is None))
    return Bandwidth(min(rates), met=True)


def _start(shared: Mapping[str, Any], group: Group, gpu: int) -> subprocess.Popen[str]:
    own = {"rank": group.node * group.per_node + gpu, "ranks": group.ranks, "gpu": gpu}
    command = [sys.executable, "-m", "dapo_trainer.doctor.all_reduce", json.dumps({**shared, **own})]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _ended(child: subprocess.Popen[str], deadline: float) -> Bandwidth:
    try:
        said, errors = child.communicate(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        child.kill()
        said, errors = child.communicate()
        errors = f"no answer in {REDUCE_SECONDS:.0f} s"
    return parse(said.splitlines(), errors)


def parse(lines: Sequence[str], errors: str) -> Bandwidth:
    """What one process printed. Pure."""
    said: dict[str, Any] = {}
    for line in lines:
        said |= json.loads(line)
    last = next((line for line in reversed(errors.strip().splitlines()) if line.strip()), "no message")
    error = "" if "gb" in said else first_line(RuntimeError(last))
    return Bandwidth(said.get("gb"), "met" in said, error)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
