"""Who logs in sees the namespaces of their groups, and no others."""

from contextlib import closing
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

from dashboard_data import Store
from dashboard_pages import click_row, open_page, says, wait_for_charts
from patience import patient
from playwright.sync_api import Page, expect
from servers.dashboard import dashboard
from servers.identity import CLIENT, provider
from servers.ports import free_port

from dapo_core.db import open_reader


def test_a_login_opens_the_namespaces_of_its_groups(page: Page, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.run("sums", steps=2, namespace="math")
    store.run("private", steps=2, namespace="secret")
    store.alert("sums")
    store.alert("private", "RewardCollapse")
    access = tmp_path / "access.yaml"
    access.write_text("groups:\n  team-math: [math]\n  admins: ['*']\n")
    port = free_port()
    with provider({"sub": "1", "email": "ann@example.org", "groups": ["team-math"]}) as identity:
        _secrets(tmp_path, identity, port)
        environment = {
            "DAPO_DASHBOARD_ACCESS": str(access),
            "DAPO_ACKNOWLEDGE_URL": store.url,
            # As the chart sets it.
            "STREAMLIT_SERVER_ALLOWED_HOSTS": "localhost 127.0.0.1",
        }
        with dashboard(store.url, tmp_path / "server.log", environment, port=port) as url:
            a21_other_sites_neither_frame_nor_read_the_pages(port)
            open_page(page, f"{url}/run?run=sums")
            says(page, "Log in to see your runs")
            assert "sums" not in page.locator("body").inner_text()
            page.get_by_role("button", name="Log in").click()
            expect(page.get_by_role("link", name="Alerts")).to_be_visible()

            open_page(page, f"{url}/run?run=sums")
            wait_for_charts(page, 11)
            open_page(page, f"{url}/run?run=private")
            says(page, "There is no run private, or you may not see it")
            open_page(page, f"{url}/compare?runs=sums&runs=private")
            says(page, "Choose two or more runs")

            open_page(page, f"{url}/alerts")
            click_row(page, "sums", tick=True)
            page.get_by_role("button", name="Acknowledge 1").click()
            expect(page.get_by_role("button", name="Acknowledge 0")).to_be_visible()
    seen = {alert.run_id: alert.acknowledged_by for alert in open_reader(store.url).alerts()}
    assert seen == {"sums": "ann@example.org", "private": None}


def a21_other_sites_neither_frame_nor_read_the_pages(port: int) -> None:
    """A page whose name was made to resolve to this server has that name as Host, also in its Origin."""

    def ask(path: str, host: str, headers: dict[str, str]) -> HTTPResponse:
        with closing(HTTPConnection("127.0.0.1", port, timeout=patient(10))) as connection:
            connection.request("GET", path, headers={"Host": host, "Origin": f"http://{host}", **headers})
            with closing(connection.getresponse()) as response:
                return response

    assert ask("/", f"127.0.0.1:{port}", {}).headers["content-security-policy"] == "frame-ancestors 'self'"
    socket = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
    }
    answers = {host: ask("/_stcore/stream", host, socket).status for host in ("evil.example.org", f"localhost:{port}")}
    assert answers == {"evil.example.org": 403, f"localhost:{port}": 101}


def _secrets(folder: Path, identity: str, port: int) -> None:
    (folder / ".streamlit").mkdir()
    (folder / ".streamlit" / "secrets.toml").write_text(
        f"""[auth]
redirect_uri = "http://127.0.0.1:{port}/oauth2callback"
cookie_secret = "{"c" * 40}"
client_id = "{CLIENT}"
client_secret = "{"s" * 20}"
server_metadata_url = "{identity}/.well-known/openid-configuration"
"""
    )
