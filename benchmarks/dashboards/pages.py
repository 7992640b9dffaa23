"""Pages in Chromium: when they have settled, and how many points they receive to draw."""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, Response

from dashboards import viewers

STILL_SECONDS = 0.5
PATIENCE_SECONDS = 120
REPEATS = 5
SIZE: Any = {"width": 1440, "height": 1000}
# Peers draw what is in sight.
TALL = SIZE | {"height": 3000}
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


def settled(chromium: Browser, urls: Mapping[str, str], size: Any = SIZE) -> dict[str, float]:
    """Seconds from asking for a page until nothing on it changes any more: in a browser without a cache, and in one
    that has its scripts; each the median of several visits. And what the browser's main thread worked for it, which
    depends less on what else the machine does. The pages take turns."""
    visits: dict[str, list[_Visit]] = defaultdict(list)
    for _ in range(REPEATS):
        for name, url in urls.items():
            context = chromium.new_context(viewport=size)
            for which in ("first visit", "again"):
                visits[f"{name}: {{}}, {which}"].append(_visit(context, url))
            context.close()
    figures: dict[str, float] = {}
    for name, seen in visits.items():
        figures[name.format("settled") + ", s"] = median(visit.seconds for visit in seen)
        figures[name.format("main thread") + ", ms"] = median(visit.worked for visit in seen)
    return figures


def drawn(chromium: Browser, name: str, url: str) -> dict[str, float]:
    """Of one tool: seconds until its page with the curves has settled, and the points it received to draw."""
    context = chromium.new_context(viewport=TALL)
    sent = _visit(context, url).points
    context.close()
    if _is_ours(url):
        sent = viewers.points_sent(*url.split("/run?"))
    return settled(chromium, {name: url}, TALL) | {f"{name}: points sent to be drawn": float(sent)}


@dataclass(frozen=True)
class _Visit:
    """Seconds until the page has settled, milliseconds of processor of the browser's main thread, and the points in the
    responses of TensorBoard or MLflow."""

    seconds: float
    worked: float
    points: int


def _visit(context: BrowserContext, url: str) -> _Visit:
    answers: list[Response] = []
    page = context.new_page()
    page.add_init_script(WATCH)
    page.on("response", lambda response: answers.append(response) if _is_curve(response.url) else None)
    session = context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    try:
        began = time.perf_counter()
        page.goto(url, wait_until="commit")
        took = _still(page, began, lambda: bool(answers) or _is_ours(url))
        metrics = session.send("Performance.getMetrics")["metrics"]
        worked = next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")
        return _Visit(took, 1000 * worked, sum(map(_points_in, answers)))
    finally:
        page.close()


def _still(page: Page, began: float, begun: Callable[[], bool]) -> float:
    """When the page changed for the last time, in seconds since `began`: half a second without a change is settled."""
    while time.perf_counter() - began < PATIENCE_SECONDS:
        page.wait_for_timeout(50)
        quiet: float = page.evaluate("() => performance.now() - window.lastChange")
        if quiet > 1000 * STILL_SECONDS and begun() and page.locator("canvas, svg, table").count() > 3:
            return time.perf_counter() - began - quiet / 1000
    raise RuntimeError(f"{page.url} does not come to rest")


def _is_ours(url: str) -> bool:
    return "#" not in url


def _is_curve(url: str) -> bool:
    """Whether this is a response of TensorBoard or MLflow with curves."""
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
