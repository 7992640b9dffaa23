"""A real browser: Debian's Chromium, installed when it is not there, driven by playwright."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

BINARIES = ("chromium", "chromium-headless-shell", "google-chrome")
# Another installation may be going on: Debian's tools wait for each other this long.
INSTALL = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"]


def chromium_binary() -> Path:
    """The browser's path; as root it is installed where there is none."""
    found = _found()
    if found is None and os.geteuid() == 0:
        print("installing the Debian package chromium (the pages are looked at in a real browser)")
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        if subprocess.run([*INSTALL, "chromium", "fonts-dejavu-core"], env=environment, check=False).returncode != 0:
            subprocess.run(["apt-get", "update", "-qq"], env=environment, check=True)
            subprocess.run([*INSTALL, "chromium", "fonts-dejavu-core"], env=environment, check=True)
        found = _found()
    if found is None:
        raise RuntimeError("There is no Chromium here: ask the machine's administrator for `apt-get install chromium`.")
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
