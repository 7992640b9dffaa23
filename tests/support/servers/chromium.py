"""A real browser: Debian's Chromium, installed when it is not there, driven by playwright."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

BINARIES = ("chromium", "chromium-headless-shell", "google-chrome")
DEBIAN = Path(__file__).parents[3] / "scripts" / "debian.sh"


def chromium_binary() -> Path:
    """The browser's path. Installed where there is none; CalledProcessError where it may not be."""
    found = _found()
    if found is None:
        subprocess.run([DEBIAN, "chromium", "fonts-dejavu-core"], check=True)
        found = _found()
    if found is None:
        raise FileNotFoundError(f"none of {', '.join(BINARIES)} was found after installing Debian's package chromium")
    return Path(found)


@contextmanager
def browser() -> Iterator[Browser]:
    """A headless browser that ends with the block."""
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=str(chromium_binary()), args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        try:
            yield running
        finally:
            running.close()


def _found() -> str | None:
    return next((path for name in BINARIES if (path := shutil.which(name))), None)
