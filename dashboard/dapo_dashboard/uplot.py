"""uPlot, which draws the charts in the browser: taken from its npm package by hash, and kept next to the code.

    python -m dapo_dashboard.uplot      # what set-up and every build of a wheel or an image do as well

npm's own variable `npm_config_registry` names another registry. Standard library alone: a build has nothing else."""

import base64
import hashlib
import io
import os
import sys
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Final

VERSION: Final = "1.6.32"
SHA512: Final = "KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw=="
REGISTRY: Final = "https://registry.npmjs.org"
FOLDER: Final = Path(__file__).parent / "browser" / "uplot"
# In the package, and here.
FILES: Final = {
    "package/dist/uPlot.iife.min.js": "uPlot.iife.min.js",
    "package/dist/uPlot.min.css": "uPlot.min.css",
    "package/LICENSE": "LICENSE",
}
_TRIES: Final = 4


class NoUPlotError(Exception):
    """uPlot is not there and cannot be had; the message says what to do."""


def url(env: Mapping[str, str] = os.environ) -> str:
    """Where its package is."""
    registry = env.get("npm_config_registry") or env.get("NPM_CONFIG_REGISTRY") or REGISTRY
    return f"{registry.rstrip('/')}/uplot/-/uplot-{VERSION}.tgz"


def is_there(folder: Path = FOLDER) -> bool:
    """Whether this version was fetched before."""
    version = folder / "VERSION"
    return (
        version.is_file()
        and version.read_text() == VERSION
        and all((folder / name).is_file() for name in FILES.values())
    )


def fetch(folder: Path = FOLDER, source: str | None = None) -> None:
    """Fetch it unless it is there. `source` is the URL of the package. Raises NoUPlotError."""
    if is_there(folder):
        return
    source = source or url()
    package = _download(source)
    found = base64.b64encode(hashlib.sha512(package).digest()).decode()
    if found != SHA512:
        raise NoUPlotError(f"{source} is not uPlot {VERSION}: its SHA-512 is {found}, not {SHA512}.")
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        for member, name in FILES.items():
            content = archive.extractfile(member)
            assert content is not None
            _write(folder / name, content.read())
    _write(folder / "VERSION", VERSION.encode())  # last: it says that the others are there


def _download(source: str) -> bytes:
    for wait in range(_TRIES):
        try:
            with urllib.request.urlopen(source, timeout=60) as response:
                content: bytes = response.read()
                return content
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            if wait == _TRIES - 1:
                raise NoUPlotError(
                    f"Cannot fetch uPlot, which draws the dashboard's charts, from {source}: {error}. Set "
                    f"npm_config_registry to a registry that this machine can reach, or save uplot-{VERSION}.tgz of "
                    f"another machine and run `python -m dapo_dashboard.uplot file:///path/to/uplot-{VERSION}.tgz`."
                ) from error
            time.sleep(2**wait)
    raise AssertionError("the last try returns or raises")


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all: several builds may do it at once."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_bytes(content)
    part.replace(path)


if __name__ == "__main__":
    try:
        fetch(source=sys.argv[1] if len(sys.argv) > 1 else None)
    except NoUPlotError as problem:
        sys.exit(str(problem))
