"""A page that refreshes itself: when new data is shown, and what an hour of it costs in memory."""

import time
from statistics import median

from dashboard_pages import wait_for_charts
from playwright.sync_api import Browser, Page, WebSocket
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from dashboards import data, viewers
from dashboards.pages import REPEATS, SIZE

# When the page last asked the server for anything, and when a step was to be read on all charts.
_WATCH = """
const send = WebSocket.prototype.send;
WebSocket.prototype.send = function (...given) {
  window.lastAsked = performance.now();
  return send.apply(this, given);
};
window.seen = (step) => new Promise((resolve) => {
  const look = () => {
    const there = document.querySelector('.dapo-grid')?.dataset.step === String(step);
    // Two frames on, what was changed is drawn.
    if (there) requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now() - window.lastAsked)));
    else requestAnimationFrame(look);
  };
  look();
});
"""


def live(chromium: Browser, address: str, url: str) -> dict[str, float]:
    """Seconds until a new step is drawn on all charts, from its commit and from the page's request that fetched it."""
    page = chromium.new_page(viewport=SIZE)
    page.add_init_script(_WATCH)
    page.goto(f"{address}/run?run={data.GROWING}")
    wait_for_charts(page, 11)
    after_commit, after_question = [], []
    first = data.newest(url) + 1
    for step in range(first, first + 2 * REPEATS):
        page.wait_for_timeout(500)
        data.grow(url, data.GROWING, range(step, step + 1))
        began = time.perf_counter()
        after_question.append(page.evaluate(f"() => window.seen({step})") / 1000)
        after_commit.append(time.perf_counter() - began)
    page.close()
    return {
        "live refresh, from the question to a new step drawn, s": median(after_question),
        "a new step on all charts after its commit, s (asked every 2)": median(after_commit),
    }


class Refreshes:
    """Counts the refreshes that a page has had."""

    def __init__(self, page: Page) -> None:
        self.count = 0
        page.on("websocket", self._listen)

    def _listen(self, socket: WebSocket) -> None:
        socket.on("framereceived", self._see)

    def _see(self, frame: str | bytes) -> None:
        message = ForwardMsg()
        message.ParseFromString(frame if isinstance(frame, bytes) else frame.encode())
        self.count += message.WhichOneof("type") == "script_finished"


def memory(chromium: Browser, address: str, url: str, refreshes: int) -> dict[str, float]:
    """Growth in MB from a tenth of the refreshes to their end: what is filled once is filled by then."""
    page = chromium.new_page(viewport=SIZE)
    counted = Refreshes(page)
    page.goto(f"{address}/run?run={data.GROWING}")
    wait_for_charts(page, 11)
    session = page.context.new_cdp_session(page)
    server = viewers.server_of(address)
    seen: list[tuple[float, float]] = []
    for turn in range(11):
        # A new step in each fiftieth of them, as in a run of a step every seventy seconds.
        for part in range(5 if turn else 0):
            step = data.newest(url) + 1
            data.grow(url, data.GROWING, range(step, step + 1))
            _wait(page, counted, (5 * (turn - 1) + part + 1) * refreshes // 50)
        session.send("HeapProfiler.collectGarbage")
        heap = session.send("Runtime.getHeapUsage")["usedSize"]
        seen.append((heap / 1e6, server.memory_info().rss / 1e6))
    page.close()
    told = f"{counted.count:,} refreshes, MB"
    return {
        f"browser's heap after a tenth of {told}": seen[1][0],
        f"browser's heap after {told}": seen[-1][0],
        f"server's memory after a tenth of {told}": seen[1][1],
        f"server's memory after {told}": seen[-1][1],
    }


def _wait(page: Page, counted: Refreshes, count: int) -> None:
    while counted.count < count:
        page.wait_for_timeout(100)
