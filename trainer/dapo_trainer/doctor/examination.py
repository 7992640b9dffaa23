"""All checks of a machine, in the order of their cost: the cheap ones first, so that a bad node ends a pod at once."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from dapo_trainer.doctor import bandwidth, gpus, machine
from dapo_trainer.doctor.bandwidth import Group
from dapo_trainer.doctor.check import Check, CheckVerdict, failed, skipped
from dapo_trainer.verl_config.placement import Device

KERNEL_SECONDS: Final = 180.0
DEVICE_NODES: Final = Path("/dev/infiniband")


@dataclass(frozen=True)
class Machine:
    """What is to be checked. `gpus`: how many are needed; 0 for a pod without. `work`: where a run writes. `prefix`:
    where an object may be written. `peers`: the all-reduce with other machines, None for one machine."""

    device: Device
    gpus: int
    work: Path
    hosts: Sequence[str] = ()
    metadata_url: str | None = None
    store_url: str | None = None
    prefix: str = ""
    peers: Group | None = None


def examine(target: Machine) -> Iterator[Check]:
    """Every check that applies, as soon as it is done."""
    devices = bandwidth.rdma_devices()
    usable = bool(devices) and DEVICE_NODES.is_dir()
    yield machine.shared_memory()
    yield from machine.limits(rdma=usable)
    yield machine.disk(target.work)
    hosts = [host(), *target.hosts, *machine.hosts_of(target.metadata_url, target.store_url)]
    yield from machine.name_service(hosts)
    yield from machine.stores(target.metadata_url, target.store_url, target.prefix)
    if target.device == "cpu":
        yield skipped("GPUs", "the device is the processor")
    elif not target.gpus:
        return
    here: Sequence[gpus.Gpu] | None = None
    if target.device == "cuda":
        here = gpus.query()
        yield from gpus.checks(here, target.gpus, _cuda_version())
        if not here:
            return
        yield bandwidth.rdma(devices, usable, target.peers is not None)
    yield from kernels(target.device)
    alone = Group(target.device, target.gpus if target.device == "cuda" else 2)
    yield bandwidth.check(bandwidth.WITHIN, alone, _fabric(here))
    if target.peers is None:
        yield skipped(bandwidth.BETWEEN, "one node")
    else:
        yield bandwidth.check(bandwidth.BETWEEN, target.peers, bandwidth.between(devices if usable else ()))


def kernels(device: Device) -> Iterator[Check]:
    """Attention and log-probabilities, in a process of their own."""
    command = [sys.executable, "-m", "dapo_trainer.doctor.kernel_accuracy", device]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=KERNEL_SECONDS)
        said, errors, code = ended.stdout, ended.stderr, ended.returncode
    except subprocess.TimeoutExpired as error:
        said, errors, code = str(error.stdout or ""), f"no answer in {KERNEL_SECONDS:.0f} s", 1
    for line in said.splitlines():
        fields = json.loads(line)
        yield Check(fields["name"], CheckVerdict(fields["verdict"]), fields["found"], fields["remedy"])
    if code:
        last = (errors.strip().splitlines() or ["no message"])[-1]
        yield failed("kernels", f"ended with {code} ({last})", "test the GPU and its driver, and cordon the node")


def _fabric(here: Sequence[gpus.Gpu] | None) -> bandwidth.Fabric:
    return bandwidth.Fabric("loopback", None) if here is None else bandwidth.within(here)


def _cuda_version() -> str | None:
    """The CUDA version of the installed torch, without importing it: of its runtime package."""
    for package in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return None


def host() -> str:
    """This machine's name."""
    return socket.gethostname()
