"""The pages over Postgres, with the logins that they have on a cluster."""

from collections.abc import Iterator
from types import SimpleNamespace

import dashboard_data
import pytest
from dashboard_data import Store
from dashboard_pages import CHARTS, click_row, open_page, says, wait_for_charts
from playwright.sync_api import Page, expect
from servers.dashboard import dashboard
from servers.postgres import PostgresServer

from dapo_core.db import open_reader, open_writer, roles, upgrade
from dapo_core.errors import StoreError
from dapo_core.run.annotations import AnnotationRow, by_run


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A server of its own, since it is stopped, and the dashboard with a reader's and an acknowledger's login."""
    folder = tmp_path_factory.mktemp("postgres-pages")
    server = PostgresServer(fsync=False).start()
    try:
        url = server.new_database(upgraded=True)
        upgrade(url, with_roles=True)
        logins = {group: _login(url, group) for group in ("reader", "acknowledger")}
        store = Store(folder, url)
        store.run("steady", steps=5)
        dashboard_data.restarted(store)
        dashboard_data.failing(store)
        environment = {"DAPO_ACKNOWLEDGE_URL": logins["acknowledger"]}
        with dashboard(logins["reader"], folder / "server.log", environment) as address:
            yield SimpleNamespace(address=address, server=server, url=url, logins=logins)
    finally:
        server.close()


def _login(url: str, group: roles.Group) -> str:
    granted = roles.grant(url, f"{url.rpartition('/')[2]}_{group}", group, None)
    assert granted is not None
    return granted.render_as_string(hide_password=False)


@pytest.mark.parametrize(
    ("path", "texts"),
    [
        pytest.param("/run?run=restarted", ["40 / 100", "restart at 20"], id="restarted"),
        pytest.param("/run?run=failing&x=time", ["NonFinite", "10 / 100"], id="failing with NaN, over time"),
        pytest.param("/compare?runs=steady&runs=restarted&view=Curves", ["Gradient norm"], id="compared"),
    ],
)
def test_pages(page: Page, served: SimpleNamespace, path: str, texts: list[str]) -> None:
    open_page(page, served.address + path)
    wait_for_charts(page, 4)
    says(page, *texts)


def test_the_login_that_acknowledges_can_do_nothing_else(page: Page, served: SimpleNamespace) -> None:
    open_page(page, f"{served.address}/alerts")
    click_row(page, "failing", tick=True)
    page.get_by_role("button", name="Acknowledge 1").click()
    expect(page.get_by_role("button", name="Acknowledge 0")).to_be_visible()
    open_page(page, served.address)
    click_row(page, "failing", tick=True)
    page.get_by_role("button", name="Star", exact=True).click()
    expect(page.get_by_role("button", name="Unstar")).to_be_visible()
    said = by_run(open_reader(served.url).annotations())
    assert said.keys() == {"failing"} and len(said["failing"].stars) == 1
    (alert,) = open_reader(served.url).alerts()
    assert alert.rule == "NonFinite" and alert.acknowledged_by and alert.acknowledged_at
    for login in served.logins.values():
        with pytest.raises(StoreError):
            open_writer(login).update_run_state("steady", "Failed")
    with pytest.raises(StoreError):
        open_writer(served.logins["reader"]).annotate([AnnotationRow("steady", "note", "", "x", "ada", 1.0)])


def test_a_database_that_goes_away_and_comes_back(page: Page, served: SimpleNamespace) -> None:
    open_page(page, f"{served.address}/run?run=steady")
    wait_for_charts(page, 11)
    served.server.stop()
    says(page, "The metadata store has not responded", "Showing data from", "5 / 100")
    assert page.locator(CHARTS).count() >= 11, "what was read last is still there"
    served.server.start()
    expect(page.get_by_text("The metadata store has not responded")).to_have_count(0)
    says(page, "5 / 100")
