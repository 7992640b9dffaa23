"""Whether a process's threads still run: for its parent a number in memory that both share, for the first process of
its pod a file in memory that it touches. Neither depends on a disk."""

import mmap
import os
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_NUMBER: Final = struct.Struct("Q")
# In the environment of all of a pod's processes, and not elsewhere (`dapo_trainer.pod.node`).
_POD_ADDRESS: Final = "DAPO_NODE_IP"
BEAT_SECONDS: Final = 5.0
# A rank whose heartbeat is that old is reported: twelve beats, of which none came.
SILENT_SECONDS: Final = 60.0


class LivenessCounter:
    """A number that a thread increments; 0 while nothing is said. Forked processes share it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _NUMBER.size)

    @property
    def value(self) -> int:
        """The number; one that stays the same for long is that of a process none of whose threads run."""
        number: int = _NUMBER.unpack_from(self._memory)[0]
        return number

    def count(self) -> None:
        """Say that this process runs."""
        _NUMBER.pack_into(self._memory, 0, self.value + 1)

    def stop(self) -> None:
        """Say nothing from here on."""
        _NUMBER.pack_into(self._memory, 0, 0)


# Of the driver, made before the process that records its output forks it.
DRIVER: Final = LivenessCounter()


def heartbeats_of(environment: Mapping[str, str]) -> Path | None:
    """The folder of the heartbeats of this pod's ranks; None outside of a pod."""
    address = environment.get(_POD_ADDRESS)
    return None if address is None else Path("/dev/shm") / f"dapo-heartbeats-{address}"


def beat(folder: Path, seconds: float = BEAT_SECONDS) -> None:
    """From now on a thread of this process touches the file named by its process ID, as long as threads of it run."""
    file, never = folder / str(os.getpid()), threading.Event()

    def touch() -> None:
        while True:
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                file.touch()
            never.wait(seconds)

    threading.Thread(target=touch, name="heartbeat", daemon=True).start()


@dataclass
class Heartbeats:
    """The heartbeats of a pod's ranks. What is counted is the time between two looks, and no more of it than a look
    should be apart: while the machine is suspended nobody touches a file."""

    folder: Path
    look_seconds: float = BEAT_SECONDS
    # By process ID: the file's time, and for how many seconds it has been the same.
    _seen: dict[int, tuple[int, float]] = field(default_factory=dict)
    _looked_at: float | None = None

    def silent(self, now: float) -> list[int]:
        """The process IDs of those that exist and have been silent for SILENT_SECONDS. `now`: of any clock that never
        goes back."""
        passed = 0.0 if self._looked_at is None else min(now - self._looked_at, self.look_seconds)
        self._looked_at = now
        touched = self._touched()
        self._seen = {
            pid: (at, known[1] + passed if (known := self._seen.get(pid, (0, 0.0)))[0] == at else 0.0)
            for pid, at in touched.items()
        }
        return sorted(pid for pid, (_, silence) in self._seen.items() if silence >= SILENT_SECONDS)

    def _touched(self) -> dict[int, int]:
        """When each process that still exists touched its file; a file of one that has ended is removed."""
        touched = dict[int, int]()
        with suppress(OSError):
            for file in self.folder.iterdir():
                with suppress(OSError, ValueError):
                    if Path(f"/proc/{int(file.name)}").exists():
                        touched[int(file.name)] = file.stat().st_mtime_ns
                    else:
                        file.unlink()
        return touched
