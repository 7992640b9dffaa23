"""NVIDIA GPUs as their driver reports them: version, number, memory, errors, clocks. Parsing is pure."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dapo_trainer.doctor.check import Check, failed, ok, warning

_FIELDS: Final = {
    "index": "index",
    "name": "name",
    "driver": "driver_version",
    "memory": "memory.total",
    "used": "memory.used",
    "errors": "ecc.errors.uncorrected.volatile.total",
    "slowed": "clocks_throttle_reasons.hw_slowdown",
    "hot": "clocks_throttle_reasons.hw_thermal_slowdown",
    "bus": "pcie.link.gen.max",
    "lanes": "pcie.link.width.max",
}
TIMEOUT_SECONDS: Final = 30.0
# The first driver branch that runs binaries of a CUDA major version (CUDA compatibility, NVIDIA).
LEAST_DRIVER: Final[Mapping[int, int]] = {11: 450, 12: 525, 13: 580}
FOREIGN_MIB: Final = 1024
# One direction of a PCIe lane, GB/s, by generation.
LANE_GB: Final[Mapping[int, float]] = {3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


@dataclass(frozen=True)
class Gpu:
    """One GPU. Memory in MiB; `pcie_gb`: of one direction in GB/s, None when unknown."""

    index: int
    name: str
    driver: str
    memory: int
    used: int
    errors: int
    slowed: bool
    pcie_gb: float | None


def query() -> Sequence[Gpu] | None:
    """This machine's GPUs; None when nvidia-smi is missing, fails or hangs."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS.values())}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse(answer.stdout)


def parse(text: str) -> Sequence[Gpu]:
    """GPUs from nvidia-smi's CSV; a value it does not know (`[N/A]`) counts as zero."""
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        row = dict(zip(_FIELDS, (cell.strip() for cell in line.split(",")), strict=False))
        lanes = LANE_GB.get(_number(row["bus"]), 0.0) * _number(row["lanes"])
        found.append(
            Gpu(
                _number(row["index"]),
                row["name"],
                row["driver"],
                _number(row["memory"]),
                _number(row["used"]),
                _number(row["errors"]),
                "Active" in (row["slowed"], row["hot"]),
                lanes or None,
            )
        )
    return found


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def checks(gpus: Sequence[Gpu] | None, wanted: int, cuda: str | None) -> Iterator[Check]:
    """`wanted`: how many the job's pod requests; `cuda`: the version that torch was built for ("13.0"), if any."""
    if not gpus:
        found = "nvidia-smi does not answer" if gpus is None else "the driver reports no GPU"
        yield failed("GPUs", found, "install the GPU operator or device plug-in, and request GPUs in gpusPerPod")
        return
    yield _driver(gpus[0].driver, cuda)
    if len(gpus) < wanted:
        yield failed("GPUs", f"{len(gpus)} of {wanted}", "look at the node's device plug-in, and cordon the node")
    else:
        yield ok("GPUs", f"{len(gpus)} x {gpus[0].name}")
    yield from _memory(gpus)
    broken = [gpu.index for gpu in gpus if gpu.errors]
    if broken:
        yield failed("GPU memory errors", f"uncorrected on GPU {_list(broken)}", "cordon the node and reset the GPUs")
    else:
        yield ok("GPU memory errors", "none uncorrected since the driver was loaded")
    slow = [gpu.index for gpu in gpus if gpu.slowed]
    if slow:
        yield warning("GPU clocks", f"lowered by heat or power on GPU {_list(slow)}", "check cooling and power supply")
    else:
        yield ok("GPU clocks", "not lowered by heat or power")


def _driver(version: str, cuda: str | None) -> Check:
    major, least = version.partition(".")[0], LEAST_DRIVER.get(int(cuda.partition(".")[0])) if cuda else None
    if cuda is None or least is None or not major.isdigit():
        return ok("driver", version)
    if int(major) < least:
        return failed("driver", f"{version}, too old for CUDA {cuda}", f"install driver {least} or newer on the node")
    return ok("driver", f"{version}, runs CUDA {cuda}")


def _memory(gpus: Sequence[Gpu]) -> Iterator[Check]:
    sizes = {gpu.memory for gpu in gpus}
    found = ", ".join(f"{memory / 1024:.0f} GiB" for memory in sorted(sizes))
    taken = [gpu for gpu in gpus if gpu.used > FOREIGN_MIB]
    if taken:
        most = max(gpu.used for gpu in taken) / 1024
        where = _list([gpu.index for gpu in taken])
        yield warning("GPU memory", f"{found}; up to {most:.0f} GiB in use on GPU {where}", "end what else runs there")
    elif len(sizes) > 1:
        yield warning("GPU memory", f"{found}: not all alike", "put GPUs of one kind into a pod: the smallest decides")
    else:
        yield ok("GPU memory", found)


def _list(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices))
