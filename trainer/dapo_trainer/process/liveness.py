"""Whether a process's threads still run, for its parent: a number in memory that both share, however the disk is."""

import mmap
import struct
from typing import Final

_NUMBER: Final = struct.Struct("Q")


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
