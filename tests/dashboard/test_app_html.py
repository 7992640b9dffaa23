"""The settings that a browser gets before Streamlit's application starts, which save it requests."""

from pathlib import Path

from dashboard_data import Store
from dashboard_pages import open_page, wait_for_charts
from playwright.sync_api import Page
from servers.dashboard import dashboard

from dapo_dashboard import app_html

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


def test_the_settings_come_before_streamlits_first_script() -> None:
    html = app_html.html()
    assert 0 < html.index("window.__streamlit") < html.index('<script type="module"')


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
