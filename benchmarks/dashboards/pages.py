"""Pages in Chromium: when they stand still, when news arrives, how memory grows, how many points are sent."""

import json
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import psutil
from dashboard_pages import wait_for_charts
from playwright.sync_api import Browser, Page, Response

from dashboards import data, viewers

STILL_SECONDS = 0.5
PATIENCE_SECONDS = 120
REPEATS = 5
SIZE: Any = {"width": 1440, "height": 1000}
# Notes when anything of a page changed: its elements, or a canvas that was drawn upon.
WATCH = """
window.lastChange = performance.now();
const note = () => { window.lastChange = performance.now(); };
new MutationObserver(note).observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
for (const kind of [window.CanvasRenderingContext2D, window.WebGL2RenderingContext]) {
  for (const name of ["fill", "stroke", "fillText", "clearRect", "drawImage", "drawArrays", "drawElements"]) {
    const drawn = kind?.prototype[name];
    if (drawn) kind.prototype[name] = function (...given) { note(); return drawn.apply(this, given); };
  }
}
"""


def settled(chromium: Browser, pages: Mapping[str, str]) -> dict[str, float]:
    """Seconds from asking for a page until nothing on it changes any more."""
    figures: dict[str, float] = {}
    for name, url in pages.items():
        _seconds_until_still(chromium, url)  # the first viewer ever pays for imports
        took = [_seconds_until_still(chromium, url) for _ in range(REPEATS)]
        figures[f"{name}: settled in the browser, s"] = median(took)
    return figures


def _seconds_until_still(chromium: Browser, url: str) -> float:
    page = chromium.new_page(viewport=SIZE)
    page.add_init_script(WATCH)
    try:
        began = time.perf_counter()
        page.goto(url, wait_until="commit")
        return _still(page, began)
    finally:
        page.close()


def _still(page: Page, began: float, begun: Callable[[], bool] = lambda: True) -> float:
    """When the page changed for the last time, in seconds since `began`: half a second without a change is rest."""
    while time.perf_counter() - began < PATIENCE_SECONDS:
        page.wait_for_timeout(50)
        quiet = page.evaluate("() => performance.now() - window.lastChange")
        if quiet > 1000 * STILL_SECONDS and begun() and page.locator("canvas, svg, table").count() > 3:
            return time.perf_counter() - began - quiet / 1000
    raise RuntimeError(f"{page.url} does not come to rest")


def live(chromium: Browser, address: str, url: str) -> dict[str, float]:
    """Seconds from the commit of a step until it is seen; pages ask every half a second."""
    page = chromium.new_page(viewport=SIZE)
    page.goto(f"{address}/run?run={data.GROWING}")
    wait_for_charts(page, 11)
    took = []
    for step in range(51, 51 + 2 * REPEATS):
        data.grow(url, data.GROWING, range(step, step + 1))
        began = time.perf_counter()
        page.wait_for_function(
            """(step) => [...document.querySelectorAll('[class*="st-key-chart-"] .stEChartsChart')]
                .every((each) => (each.getAttribute('aria-label') ?? '').includes(`step ${step}:`))""",
            arg=step,
            polling=20,
        )
        took.append(time.perf_counter() - began)
    page.close()
    return {"a new step on all charts after its commit, s (asked every 0.5)": median(took)}


def memory(chromium: Browser, address: str, url: str, refreshes: int) -> dict[str, float]:
    """Growth in MB from a tenth of the refreshes to their end: what is filled once is filled by then."""
    page = chromium.new_page(viewport=SIZE)
    page.goto(f"{address}/run?run={data.GROWING}")
    wait_for_charts(page, 11)
    session = page.context.new_cdp_session(page)
    server = _server(address)
    seen: list[tuple[float, float]] = []
    for turn in range(11):
        if turn:
            _pass(page, url, max(1, refreshes // 10), turn)
        session.send("HeapProfiler.collectGarbage")
        heap = session.send("Runtime.getHeapUsage")["usedSize"]
        seen.append((heap / 1e6, server.memory_info().rss / 1e6))
    page.close()
    return {
        f"browser's memory, growth over {refreshes:,} refreshes, MB": seen[-1][0] - seen[1][0],
        f"server's memory, growth over {refreshes:,} refreshes, MB": seen[-1][1] - seen[1][1],
    }


def _pass(page: Page, url: str, refreshes: int, turn: int) -> None:
    """That many refreshes of half a second, some of them with a new step."""
    for part in range(5):
        step = 1000 + turn * 5 + part
        data.grow(url, data.GROWING, range(step, step + 1))
        page.wait_for_timeout(refreshes * 500 / 5)


def _server(address: str) -> psutil.Process:
    port = int(address.rsplit(":", 1)[1])
    return next(
        process
        for process in psutil.Process().children(recursive=True)
        if any(each.laddr.port == port and each.status == "LISTEN" for each in process.net_connections())
    )


def drawn(chromium: Browser, name: str, address: str) -> dict[str, float]:
    """Of one tool: seconds until its page stands still with the curves, and the points it was sent to draw."""
    answers: list[Response] = []
    page = chromium.new_page(viewport=SIZE | {"height": 3000})
    page.add_init_script(WATCH)
    page.on("response", lambda response: answers.append(response) if _is_curve(response.url) else None)
    ours = "/run?" in address
    began = time.perf_counter()
    page.goto(address, wait_until="commit")
    took = _still(page, began, lambda: ours or bool(answers))
    sent = viewers.points_sent(*address.split("/run?")) if ours else sum(map(_points_in, answers))
    page.close()
    return {f"{name}: settled, s": took, f"{name}: points sent to be drawn": float(sent)}


def _is_curve(url: str) -> bool:
    """Whether TensorBoard or MLflow answers with curves here."""
    return "timeSeries" in url or "get-history" in url


def _points_in(response: Response) -> int:
    try:
        return _points_of(json.loads(response.text()))
    except Exception:  # an answer without a body has no points
        return 0


def _points_of(content: Any) -> int:
    """Of whatever shape: what has a step and a value is a point."""
    if isinstance(content, dict):
        return 1 if "step" in content and "value" in content else sum(map(_points_of, content.values()))
    return sum(map(_points_of, content)) if isinstance(content, list) else 0
