"""A browser that waits for its page to be out of date."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dashboard_data import Store
from patience import patient
from servers.dashboard import dashboard
from starlette.applications import Starlette
from starlette.testclient import TestClient, WebSocketTestSession
from starlette.websockets import WebSocketDisconnect
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import ClientConnection, connect

from dapo_core.errors import StoreError
from dapo_dashboard import live_updates
from dapo_dashboard.live_updates import LivePage
from dapo_dashboard.reads.page_reads import PageReads, note

MOST = 20


class Shown:
    """A value that a page shows."""

    def __init__(self) -> None:
        self.value: object = "first"
        self.reads = 0

    def __call__(self) -> object:
        self.reads += 1
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(Starlette(routes=[live_updates.route(lambda: 0.02, lambda: False)])) as client:
        yield client


def page_of(shown: Shown) -> LivePage:
    page = LivePage()
    draw(page, shown)
    return page


def draw(page: LivePage, shown: Shown, is_down: bool = False) -> None:
    reads = PageReads()
    with reads.noted():
        note(shown, shown.value, max_age=1.0)
    page.drawn(reads, is_down)


def waiting(client: TestClient, token: str) -> WebSocketTestSession:
    return client.websocket_connect(f"/{live_updates.PATH}/{token}")


def test_a_browser_is_told_each_time_that_its_page_is_out_of_date(client: TestClient) -> None:
    shown = Shown()
    page = page_of(shown)
    with waiting(client, page.token) as browser:
        wait_for_reads(shown, 3)
        for value in ("second", "third"):
            shown.value = value
            assert browser.receive_text() == "out of date"
            told = shown.reads
            draw(page, shown)
            wait_for_reads(shown, told + 3)


def test_a_browser_that_was_not_heard_is_told_again(client: TestClient) -> None:
    shown = Shown()
    page = page_of(shown)
    with waiting(client, page.token) as browser:
        shown.value = "second"
        assert [browser.receive_text() for _ in range(2)] == ["out of date"] * 2


def test_a_page_of_a_store_that_is_down_is_drawn_again(client: TestClient) -> None:
    shown = Shown()
    page = page_of(shown)
    draw(page, shown, is_down=True)
    shown.value = StoreError("away")
    with waiting(client, page.token) as browser:
        assert browser.receive_text() == "out of date"


@pytest.mark.parametrize("state", ["never known", "its viewer has gone"])
def test_a_browser_without_a_page_is_told_to_ask(client: TestClient, state: str) -> None:
    page: Any = page_of(Shown())
    token = page.token if state == "its viewer has gone" else "guessed"
    del page
    with waiting(client, token) as browser, pytest.raises(WebSocketDisconnect) as told:
        browser.receive_text()
    assert told.value.code == live_updates.UNKNOWN_PAGE


def wait_for_reads(shown: Shown, count: int) -> None:
    while shown.reads < count:
        time.sleep(0.005)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    store = Store(tmp_path_factory.mktemp("store"))
    for run in ("first", "second"):
        store.run(run, steps=3)
    with dashboard(store.url, Path(store.folder) / "server.log") as url:
        yield SimpleNamespace(stream=f"{url.replace('http', 'ws')}/_stcore/stream", store=store)


@pytest.mark.parametrize(
    ("script", "query"),
    [
        pytest.param("run", "run=first", id="run"),
        pytest.param("", "", id="table of runs"),
        pytest.param("compare", "runs=first&runs=second", id="comparison"),
        pytest.param("alerts", "", id="alerts"),
    ],
)
def test_nothing_is_sent_while_nothing_happens(served: SimpleNamespace, script: str, query: str) -> None:
    with connect(served.stream, subprotocols=["streamlit"], max_size=None) as pages:  # type: ignore[list-item]
        path = opened(pages, script, query)
        with connect(served.stream.replace("_stcore/stream", path)) as waiting:
            late = received(pages, 1.0)  # what Streamlit sends after a page
            assert len(late) < MOST, late
            for socket in (waiting, pages):
                assert received(socket, 3.0) == []  # the server looks six times meanwhile
            served.store.alert("first", "EntropyCollapse", message=f"Seen on {script}.")
            served.store.steps("first", [int(time.time())])
            assert waiting.recv(timeout=patient(30)) == "out of date"


def received(socket: ClientConnection, patience: float) -> list[str | bytes]:
    """What comes, until nothing has come for so long, or for ever."""
    found: list[str | bytes] = []
    with suppress(TimeoutError):
        while len(found) < MOST:
            found.append(socket.recv(timeout=patience))
    return found


def opened(pages: ClientConnection, script: str, query: str) -> str:
    """Where the browser of this page waits, once the page is there."""
    message = BackMsg()
    message.rerun_script.query_string = query
    message.rerun_script.page_name = script
    pages.send(message.SerializeToString())
    path = ""
    while True:
        raw = pages.recv(timeout=patient(60))
        answer = ForwardMsg.FromString(raw if isinstance(raw, bytes) else raw.encode())
        sent = answer.delta.new_element.bidi_component
        if sent.component_name == "dapo_live":
            path = json.loads(sent.json)["path"]
        if answer.WhichOneof("type") == "script_finished":
            return path
