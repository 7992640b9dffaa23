"""What a pod finds: its environment, its address and the files by which it tells how it is."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SHARED_MEMORY = "/dev/shm"
READY_FILE = "DAPO_READY_FILE"


@dataclass(frozen=True)
class Surroundings:
    """The environment of a pod (docs/architecture.md). `ready` is the file that the readiness probe looks for."""

    job_file: Path
    head_address: str
    ready: Path
    pod: str
    ip: str
    shm_bytes: int

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Surroundings":
        name = socket.gethostname()
        facts = os.statvfs(SHARED_MEMORY)
        return cls(
            job_file=Path(environment["DAPO_JOB"]),
            head_address=environment["DAPO_HEAD_ADDRESS"],
            ready=Path(environment.get(READY_FILE, "/var/lib/dapo/ready")),
            pod=name,
            # A pod's own name is in its hosts file; Ray would look for a route to the internet instead.
            ip=environment.get("DAPO_POD_IP") or socket.gethostbyname(name),
            shm_bytes=facts.f_bavail * facts.f_frsize,
        )

    @property
    def head_host(self) -> str:
        """Name or address of the head pod."""
        return self.head_address.rpartition(":")[0]

    def tell_ready(self) -> None:
        """Let the readiness probe succeed."""
        self.ready.parent.mkdir(parents=True, exist_ok=True)
        self.ready.touch()
