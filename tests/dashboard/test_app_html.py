"""The settings that a browser gets before Streamlit's application starts, which save it requests."""

from pathlib import Path

import pytest
from dashboard_data import Store
from dashboard_pages import open_page, wait_for_charts
from playwright.sync_api import Page
from servers.dashboard import dashboard

from dapo_dashboard import app_html, browser_files

# Notes answers and connections, in the order in which the page has them.
NOTED = """
window.noted = [];
const Socket = window.WebSocket, ask = window.fetch;
window.WebSocket = class extends Socket {
  constructor(...given) { super(...given); window.noted.push("connects"); }
};
window.fetch = async (...given) => {
  const answer = await ask(...given);
  window.noted.push(String(answer.status));
  return answer;
};
"""


def test_the_settings_come_before_streamlits_first_script_and_the_scripts_of_the_page_after_it() -> None:
    html = app_html.html("/run")
    places = [html.index(text) for text in ("window.__streamlit", '<script type="module"', "modulepreload", "</head>")]
    assert places == sorted(places)


@pytest.mark.parametrize("path", app_html.PATHS)
def test_a_page_without_charts_loads_no_library_for_them(path: str) -> None:
    html = app_html.html(path)
    assert "live.js" in html and ("uPlot.js" in html) is (path in ("/run", "/compare"))


def test_no_script_is_asked_for_after_the_server_has_answered(page: Page, tmp_path: Path) -> None:
    """A component's script that imports others would begin one round of requests after another."""
    store = Store(tmp_path)
    store.run("sums", steps=3)
    asked: list[str] = []
    page.on("websocket", lambda _: asked.append("connects"))
    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    with dashboard(store.url, tmp_path / "server.log") as url:
        open_page(page, f"{url}/run?run=sums")
        wait_for_charts(page, 11)
    assert set(browser_files.needed("grid.js")) <= set(asked[: asked.index("connects")])


def test_a_page_looks_for_its_server_once_and_later_connects_without_asking(page: Page, tmp_path: Path) -> None:
    """Not below /run, where it is not, and then 100 ms later below /."""
    store = Store(tmp_path)
    store.run("sums", steps=3)
    page.add_init_script(NOTED)
    with dashboard(store.url, tmp_path / "server.log") as url:
        for first in ("200", "connects"):
            open_page(page, f"{url}/run?run=sums")
            wait_for_charts(page, 11)
            noted = page.evaluate("window.noted")
            assert noted[0] == first and set(noted) == {"200", "connects"}, noted
