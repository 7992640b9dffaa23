"""One browser and one server a module; every page that a test looked at is kept as a picture."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import patient
from playwright.sync_api import Browser, Page, expect
from servers.chromium import browser

PICTURES = Path(os.environ.get("DAPO_PICTURES", Path(__file__).parents[2] / ".dapo" / "pictures"))
# Long, for a machine that does other things as well; nothing waits for longer than it takes.
PATIENCE_MS = patient(60_000)
_BEGAN = time.time()


# Not for the whole session: while playwright runs, no other test of this process can run an event loop.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    with browser() as running:
        yield running


@pytest.fixture
def page(chromium: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A fresh tab. Its last sight is kept in .dapo/pictures (or DAPO_PICTURES)."""
    context = chromium.new_context(viewport={"width": 1440, "height": 1000})
    context.set_default_timeout(PATIENCE_MS)
    tab = context.new_page()
    yield tab
    PICTURES.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"\W+", "-", request.node.name).strip("-")
    tab.screenshot(path=PICTURES / f"{name}.png")
    context.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say where the pictures of this run are."""
    fresh = [path for path in PICTURES.glob("*.png") if path.stat().st_mtime >= _BEGAN]
    if fresh:
        terminalreporter.write_line(f"{len(fresh)} pictures of pages: {PICTURES}")
