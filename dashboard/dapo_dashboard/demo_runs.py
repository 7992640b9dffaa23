"""The demo runs that come with the platform, shown when there are no others."""

import hashlib
import io
import os
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from dapo_core.db import upgrade

ARCHIVE: Final = Path(__file__).with_name("demo_runs.tar.xz")


def unpack(cache: Path | None = None) -> Path:
    """The folder with the demo's dapo.db and object store, unpacked once for each version of the archive.

    It is in the user's cache folder, so that an acknowledged alert stays acknowledged; removing it resets the demo.
    Raises OSError and StoreError."""
    packed = ARCHIVE.read_bytes()
    name = f"demo-{hashlib.sha256(packed).hexdigest()[:12]}"
    folder = (cache or _cache()) / name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as part:
            _extract(packed, Path(part) / name)
            try:
                (Path(part) / name).rename(folder)
            except OSError:  # another process was first
                if not folder.is_dir():
                    raise
    # The archive, or the folder, may be of an earlier version.
    upgrade(f"sqlite:///{folder / 'dapo.db'}")
    return folder


def _extract(packed: bytes, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:xz") as archive:
        archive.extractall(folder, filter="data")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dapo"
