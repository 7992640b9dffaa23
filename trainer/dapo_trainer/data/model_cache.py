"""Models on a volume that the pods of a node share: fetched once, verified by checksum, removed when room is needed.

    NAME/            a model, complete
    NAME.json        size and SHA-256 of each of its files, written before the folder gets its name
    NAME.lock        held while the model is fetched or verified
    NAME.use         locked, shared, by each process that uses the model; its time of change is that of the last use
    room.lock        held while room is made

Locks are the kernel's, so that a pod that is killed holds none.
"""

import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path
from typing import Final

from dapo_core.errors import ModelError, first_line
from dapo_core.parallel import parallel
from dapo_core.run.formatting import size as in_bytes

log = logging.getLogger(__name__)

HASH_WORKERS: Final = 4
# Pods of a node that start together verify a model once.
VERIFIED_SECONDS: Final = 600.0
Fetch = Callable[[Path], None]
"""Write a model's files to a folder that exists."""


class CachedModels:
    """`max_bytes`: what all models together may take; None for no limit."""

    def __init__(self, root: Path, max_bytes: int | None = None) -> None:
        self.root, self._max_bytes = root, max_bytes
        self._used: list[int] = []  # descriptors of the locks on models in use, until this process ends

    @classmethod
    def of_environment(cls) -> "CachedModels | None":
        """The pod's, which the operator names; None where there is none."""
        root, most = os.environ.get("DAPO_MODEL_CACHE"), os.environ.get("DAPO_MODEL_CACHE_BYTES")
        return cls(Path(root), int(most) if most else None) if root else None

    def part(self, name: str, fetch: Fetch) -> Path:
        """Some files of a model, on a disk of this pod's own, where a folder with all of them would be."""
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        fetch(folder)
        return folder

    def folder(self, name: str, size: int, fetch: Fetch, sums: Mapping[str, str] | None = None) -> Path:
        """The model `name`, fetched unless it is there and intact. This process then uses it until it ends.

        `size`: its bytes; `sums`: SHA-256 by file, as far as the source tells. Raises ModelError when the volume cannot
        be written, the model does not fit or was not fetched intact, and what `fetch` raises.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with self._locked(f"{name}.lock"):
                if not self._intact(name):
                    self._fetch(name, size, fetch, sums or {})
                self._use(name)
        except OSError as error:
            raise ModelError(
                f"The model cache {self.root} cannot be used ({error.strerror}): make its folder writable for user "
                f"{os.getuid()}, or remove spec.topology.modelCache."
            ) from error
        return self.root / name

    def _fetch(self, name: str, size: int, fetch: Fetch, sums: Mapping[str, str]) -> None:
        part = self.root / f".{name}.part"
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(self.root / name, ignore_errors=True)
        with self._locked("room.lock"):
            self._make_room(name, size)
            part.mkdir()
            (self.root / f"{name}.json").write_text(json.dumps({"size": size}))  # counts from here on
        try:
            _download(fetch, part)
            found = _sums(part)
            wrong = next((file for file, digest in sums.items() if file in found and found[file] != digest), None)
            if wrong is not None:
                raise ModelError(f"The model's file {wrong} was not downloaded intact: start the job again.")
            taken = sum(file.stat().st_size for file in _files(part))
            (self.root / f"{name}.json").write_text(json.dumps({"size": taken, "files": found}))
            part.rename(self.root / name)
        except BaseException:
            (self.root / f"{name}.json").unlink(missing_ok=True)
            raise
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def _intact(self, name: str) -> bool:
        """Whether the model is there with the checksums with which it was stored."""
        record, folder = self.root / f"{name}.json", self.root / name
        if not folder.is_dir():
            return False
        if time.time() - record.stat().st_mtime < VERIFIED_SECONDS:
            return True
        try:
            expected = json.loads(record.read_text()).get("files")
        except (OSError, ValueError):
            expected = None
        if expected is None or _sums(folder) != expected:
            log.warning("The model in %s has changed since it was fetched. Fetching it again.", folder)
            return False
        os.utime(record)
        return True

    def _make_room(self, name: str, size: int) -> None:
        """Remove models that nobody uses, the least recently used first. Raises ModelError when that is not enough."""
        sizes = {model: taken for model, taken in self._sizes().items() if model != name}
        if self._max_bytes is None:
            return
        for model in sorted(sizes, key=self._last_use):
            if sum(sizes.values()) + size <= self._max_bytes:
                return
            if self._remove(model):
                del sizes[model]
        if sum(sizes.values()) + size > self._max_bytes:
            raise ModelError(
                f"The model has {in_bytes(size)}, and the models in use on this node {in_bytes(sum(sizes.values()))}: "
                f"raise spec.topology.modelCache.maxSize, which is {in_bytes(self._max_bytes)}."
            )

    def _sizes(self) -> dict[str, int]:
        found = {}
        for record in self.root.glob("*.json"):
            try:
                found[record.stem] = int(json.loads(record.read_text())["size"])
            except (OSError, ValueError, KeyError):
                found[record.stem] = 0
        return found

    def _last_use(self, name: str) -> float:
        lock = self.root / f"{name}.use"
        return lock.stat().st_mtime if lock.exists() else 0.0

    def _remove(self, name: str) -> bool:
        """Returns False when a process uses or fetches the model."""
        with self._locked(f"{name}.lock", wait=False) as fetching, self._locked(f"{name}.use", wait=False) as using:
            if not (fetching and using):
                return False
            log.info("Removing %s, to make room for another model.", self.root / name)
            (self.root / f"{name}.json").unlink(missing_ok=True)
            shutil.rmtree(self.root / name, ignore_errors=True)
            return True

    def _use(self, name: str) -> None:
        lock = os.open(self.root / f"{name}.use", os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(lock, fcntl.LOCK_SH)
        os.utime(lock)
        self._used.append(lock)

    @contextmanager
    def _locked(self, name: str, *, wait: bool = True) -> Iterator[bool]:
        """Holds the lock meanwhile. Yields False when another process holds it and this one does not `wait`."""
        lock = os.open(self.root / name, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            yield _locks(lock, wait)
        finally:
            os.close(lock)


def _locks(lock: int, wait: bool) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def _download(fetch: Fetch, part: Path) -> None:
    """Raises ModelError for a fault of the network or the disk, and what else `fetch` raises."""
    try:
        fetch(part)
    except OSError as error:
        raise ModelError(f"The model could not be downloaded to {part.parent}: {first_line(error)}.") from error
    shutil.rmtree(part / ".cache", ignore_errors=True)  # the hub client's own notes


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _sums(folder: Path) -> dict[str, str]:
    """SHA-256 of each file, by its path in the folder."""

    def digest(path: Path) -> tuple[str, str]:
        with path.open("rb") as stream:
            return path.relative_to(folder).as_posix(), file_digest(stream, "sha256").hexdigest()

    return dict(parallel(digest, _files(folder), HASH_WORKERS))
