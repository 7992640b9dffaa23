"""The runs that come with the platform: trained by it, kept as data, shown when there are no others."""

import hashlib
import os
import tarfile
import tempfile
from importlib import resources
from pathlib import Path
from typing import Final

ARCHIVE: Final = "runs.tar.xz"


def unpack(cache: Path | None = None) -> Path:
    """A folder with the demo's dapo.db and store, unpacked once for each version of the archive.

    It lies in the user's cache, so that an acknowledged alert stays so; removing the folder brings the demo back."""
    packed = resources.files(__name__).joinpath(ARCHIVE).read_bytes()
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
    return folder


def _extract(packed: bytes, folder: Path) -> None:
    with tempfile.TemporaryFile() as stream:
        stream.write(packed)
        stream.seek(0)
        with tarfile.open(fileobj=stream, mode="r:xz") as archive:
            archive.extractall(folder, filter="data")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dapo"
