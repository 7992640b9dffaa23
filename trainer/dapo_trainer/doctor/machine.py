"""Checks of a machine that need no accelerator: shared memory, limits of processes, disk, DNS, clock and stores."""

import math
import os
import resource
import shutil
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from dapo_core.db import open_reader
from dapo_core.errors import DapoError, first_line
from dapo_core.objectstore import open_store
from dapo_core.quantity import GIB
from dapo_core.run.formatting import size
from dapo_trainer.doctor.check import Check, failed, ok, skipped, warning

SHARED_MEMORY: Final = Path("/dev/shm")
# What a container has by default: Ray's object store and NCCL end in a bus error there.
CONTAINER_DEFAULT_BYTES: Final = 64 * 1024**2
ENOUGH_SHARED_BYTES: Final = GIB
ENOUGH_FILES: Final = 8192
ENOUGH_PROCESSES: Final = 4096
LEAST_DISK_BYTES: Final = GIB
ENOUGH_DISK_BYTES: Final = 20 * GIB
SLOW_LOOKUP_SECONDS: Final = 1.0
# S3 refuses signatures that are 15 minutes off; curves of several machines are out of order long before.
CLOCK_WARNING_SECONDS: Final = 5.0


def shared_memory(folder: Path = SHARED_MEMORY) -> Check:
    """Size of /dev/shm."""
    name, facts = "shared memory", os.statvfs(folder)
    total, free = facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize
    found = f"{size(total)} at {folder}, {size(free)} free"
    remedy = "raise spec.topology.*.resources.shm, or docker run --shm-size"
    if total <= CONTAINER_DEFAULT_BYTES:
        return failed(name, found, remedy)
    return ok(name, found) if free >= ENOUGH_SHARED_BYTES else warning(name, found, remedy)


def limits(rdma: bool) -> Iterator[Check]:
    """Limits of open files, processes and, with RDMA, locked memory."""
    files, processes = (resource.getrlimit(which)[0] for which in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    yield _limit("open files", files, ENOUGH_FILES, "raise ulimit -n in the container runtime's configuration")
    yield _limit("processes", processes, ENOUGH_PROCESSES, "raise ulimit -u, or the pod's PID limit")
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if rdma and locked != resource.RLIM_INFINITY and not _may_lock():
        yield failed(
            "locked memory",
            f"at most {size(locked)}",
            "RDMA registers memory: add the capability IPC_LOCK in the podTemplate (docs/install.md)",
        )
    else:
        yield ok("locked memory", "unlimited" if locked == resource.RLIM_INFINITY else f"at most {size(locked)}")


def _limit(name: str, found: int, enough: int, remedy: str) -> Check:
    if found == resource.RLIM_INFINITY or found >= enough:
        return ok(name, "unlimited" if found == resource.RLIM_INFINITY else f"at most {found:,}")
    return warning(name, f"at most {found:,}, fewer than {enough:,}", remedy)


def _may_lock(status: Path = Path("/proc/self/status")) -> bool:
    """Whether this process has the capability IPC_LOCK (bit 14 of its effective set)."""
    line = next((line for line in status.read_text().splitlines() if line.startswith("CapEff:")), "CapEff:\t0")
    return bool(int(line.split()[1], 16) >> 14 & 1)


def disk(folder: Path, needed: int = ENOUGH_DISK_BYTES) -> Check:
    """Free space of the file system that has `folder`, which need not exist yet. `needed`: bytes that a run takes."""
    name, place = "disk", folder
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    found = f"{size(free)} free at {place}"
    remedy = "free space, or set spec.topology.*.scratch"
    if free < LEAST_DISK_BYTES:
        return failed(name, found, remedy)
    return ok(name, found) if free >= needed else warning(name, f"{found}, a run may take {size(needed)}", remedy)


def name_service(hosts: Sequence[str]) -> Iterator[Check]:
    """Whether each host name resolves, and how long that takes."""
    for host in dict.fromkeys(hosts):
        begun = time.monotonic()
        try:
            socket.getaddrinfo(host, None)
        except OSError as error:
            yield failed("DNS", f"{host} does not resolve ({error.strerror or error})", "check the name and the DNS")
            continue
        took = time.monotonic() - begun
        found = f"{host} resolves in {took * 1000:.0f} ms"
        slow = took > SLOW_LOOKUP_SECONDS
        yield warning("DNS", found, "check the cluster's DNS: every connection waits") if slow else ok("DNS", found)


def stores(metadata_url: str | None, store_url: str | None, prefix: str) -> Iterator[Check]:
    """Whether the metadata store answers and objects can be written under `prefix`; then this machine's clock."""
    if metadata_url is None:
        yield skipped("metadata store", "none is named")
    else:
        yield _metadata(metadata_url)
    if store_url is None:
        yield skipped("object store", "none is named")
    else:
        yield from _objects(store_url, prefix)


def hosts_of(*urls: str | None) -> list[str]:
    """Host names in the URLs of stores, including an endpoint that follows the question mark."""
    found = []
    for url in urls:
        parts = urlsplit(url or "")
        endpoint = next((item[9:] for item in parts.query.split("&") if item.startswith("endpoint=")), None)
        if endpoint:
            found.append(urlsplit(endpoint).hostname)
        elif parts.scheme.startswith("postgres"):
            found.append(parts.hostname)
    return [host for host in found if host]


def _metadata(url: str) -> Check:
    try:
        reader = open_reader(url)
        try:
            reader.runs(limit=1)
        finally:
            reader.close()
    except DapoError as error:
        return failed("metadata store", first_line(error), "check DAPO_METADATA_URL and the database")
    return ok("metadata store", "answers")


def _objects(url: str, prefix: str) -> Iterator[Check]:
    key = f"{prefix}{uuid.uuid4().hex}.probe"
    try:
        store = open_store(url)
        before = time.time()
        store.put_bytes(key, b"")
        took = time.time() - before
        stored = next((info.modified for info in store.list(key)), None)
        store.delete(key)
    except DapoError as error:
        yield failed("object store", first_line(error), "check DAPO_STORE_URL, its keys and the server")
        return
    yield ok("object store", f"lists, writes in {took * 1000:.0f} ms and deletes")
    # The object was stored between the two; S3 has whole seconds.
    ahead = 0.0 if stored is None else max(before - math.ceil(stored), stored - (before + took) - 1, 0.0)
    found = f"{ahead:.0f} s from the object store's"
    yield (
        ok("clock", f"within {CLOCK_WARNING_SECONDS:.0f} s of the object store's")
        if ahead <= CLOCK_WARNING_SECONDS
        else warning("clock", found, "synchronize the node's clock (NTP): S3 refuses requests that are 15 minutes off")
    )
