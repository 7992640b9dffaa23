"""A temporary folder for one trainer process and all below it, which is removed with what they leave in it.

Ray, vLLM and verl put sockets, locks and logs into the machine's temporary folder and do not remove them. Each attempt
has a folder in there instead. Whoever works with one holds its lock, which ends with the process however that dies, so
the next attempt of any run can remove what a crash left, when it begins or when it ends.
"""

import getpass
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dapo_core.local_files import lock_file

PREFIX: Final = "dapo-attempt-"
_NEW: Final = ".dapo-new-"
_LOCK: Final = "lock"
# Bytes of a Unix socket's path, without the zero at its end.
LONGEST_SOCKET: Final = 107
# The longest path in the folder: Ray's, with process ids of seven digits.
_SOCKET: Final = f"{PREFIX}12345678/ray/session_2026-01-31_00-00-00_123456_4194304/sockets/plasma_store"
_SHORT: Final = Path("/tmp")
_RAY_LOGS: Final = "ray/session_latest/logs"


@dataclass(frozen=True)
class TemporaryFolder:
    """`lock` is an open descriptor: a child that inherits it keeps the folder when this process is killed."""

    path: Path
    lock: int

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` with this folder as the temporary one, and compiled kernels where they were without it."""
        kernels = base.get("TORCHINDUCTOR_CACHE_DIR") or str(_kernels())
        # After those of `base`: setproctitle finds the room for a process's title by the first variable, which must not
        # be set anew, as this one is. Engines without their title are found neither by people nor by `dapo chaos`.
        return {**base, "TORCHINDUCTOR_CACHE_DIR": kernels, "TMPDIR": str(self.path)}

    def keep_logs(self, into: Path) -> None:
        """Copy what Ray's daemons have logged, if any, to the folder `into`: it may explain a failure."""
        with suppress(OSError, shutil.Error):
            if (logs := self.path / _RAY_LOGS).is_dir():
                shutil.copytree(logs, into, symlinks=True, dirs_exist_ok=True)


@contextmanager
def temporary_folder(machines: Path | None = None) -> Iterator[TemporaryFolder]:
    """A new folder below `machines` (default: the machine's temporary folder), removed at the end of the block.

    Removes what nobody holds any more, before and after. Below /tmp where sockets would have too long a path. Raises
    OSError.
    """
    parent = short_enough(machines or Path(tempfile.gettempdir()))
    remove_leftovers(parent)
    made = _locked(parent)
    try:
        yield made
    finally:
        shutil.rmtree(made.path, ignore_errors=True)
        os.close(made.lock)
        remove_leftovers(parent)


def short_enough(parent: Path) -> Path:
    """`parent`, or /tmp where the sockets in a folder below `parent` would have too long a path. Pure."""
    return parent if len(os.fsencode(parent / _SOCKET)) <= LONGEST_SOCKET else _SHORT


def remove_leftovers(parent: Path) -> None:
    """Remove the folders below `parent` whose processes have died without doing so."""
    for left in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            # Everybody may write there: what looks like a folder of ours may be somebody else's trap.
            if left.lstat().st_uid != os.getuid() or left.is_symlink():
                continue
            lock = lock_file(left / _LOCK)
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)


def _locked(parent: Path) -> TemporaryFolder:
    """Under its name only once it is locked: before, somebody else would take it for a leftover."""
    new = Path(tempfile.mkdtemp(prefix=_NEW, dir=parent))
    lock = lock_file(new / _LOCK)
    path = parent / f"{PREFIX}{new.name.removeprefix(_NEW)}"
    new.rename(path)
    return TemporaryFolder(path, lock)


def _kernels() -> Path:
    """torch's own default, which is in the temporary folder."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        user = f"uid_{os.getuid()}"
    return Path(tempfile.gettempdir()) / f"torchinductor_{user}"
