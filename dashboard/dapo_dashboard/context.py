"""What every page starts from: the metadata store, who is looking, and what they may see."""

import getpass
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import streamlit as st

from dapo_core.db import AmbiguousRunError, AttemptRow, MetadataReader, RunRow
from dapo_core.run.formatting import ago, duration, printable
from dapo_dashboard import live_updates
from dapo_dashboard.components import component
from dapo_dashboard.escaping import markdown
from dapo_dashboard.live_updates import LivePage
from dapo_dashboard.reads.cached_reader import CachedReader, NothingReadError, Reading
from dapo_dashboard.reads.page_reads import PageReads
from dapo_dashboard.server_settings import DashboardSettings, person, read_access

T = TypeVar("T")
Load = Callable[[MetadataReader, T | None], T]
MAX_RUNS: Final = 5_000
MAX_NAME: Final = 253


@dataclass(frozen=True)
class Viewer:
    """Who is looking, and the namespaces that they may see; None means all."""

    name: str
    namespaces: frozenset[str] | None

    def may_see(self, namespace: str) -> bool:
        """Whether they may see the runs of this namespace."""
        return self.namespaces is None or namespace in self.namespaces


@st.cache_resource(show_spinner=False)
def _settings() -> DashboardSettings:
    return DashboardSettings.from_env()


@st.cache_resource(show_spinner=False)
def _reader() -> CachedReader:
    return CachedReader(settings().metadata_url)


def settings() -> DashboardSettings:
    """This server's settings, read once. Raises SettingsError."""
    cached: DashboardSettings = _settings()
    return cached


def reader() -> CachedReader:
    """The one reader of this server, shared by all viewers."""
    shared: CachedReader = _reader()
    return shared


def attempts(run_id: str) -> list[AttemptRow]:
    """The attempts of a run, in order. Raises NothingReadError."""
    return reader().read(("attempts", run_id), lambda db, _: db.attempts(run_id)).value


def login_is_configured() -> bool:
    """Whether the server's secrets configure an identity provider."""
    try:
        return "auth" in st.secrets
    except FileNotFoundError:
        return False


def viewer() -> Viewer:
    """Who is looking at this page. Without a configured login, whoever reaches the server may see all."""
    if not login_is_configured():
        return Viewer(getpass.getuser(), None)
    user: dict[str, Any] = st.user.to_dict()
    return Viewer(person(user), read_access(settings().access_file).namespaces(user))


def read_run(name: str) -> Reading[RunRow | None]:
    """The run, if this viewer may see it. Raises NothingReadError."""
    namespaces = viewer().namespaces

    def load(db: MetadataReader, _: RunRow | None) -> RunRow | None:
        try:
            return db.run(name, namespaces)
        except AmbiguousRunError:
            return None

    return reader().read(("run", name, namespaces), load)


def visible_run(name: str) -> RunRow | None:
    """The run if it exists and the viewer may see it; other runs do not exist for them. Raises NothingReadError."""
    # No database takes such a name: the address came from anybody.
    if len(name) > MAX_NAME or name != printable(name):
        return None
    run = read_run(name).value
    return run if run is not None and viewer().may_see(run.namespace) else None


def visible_run_ids(limit: int = MAX_RUNS) -> list[str]:
    """IDs of the newest `limit` runs, newest first, without those that the viewer may not see. Raises
    NothingReadError."""
    rows = reader().read(("run IDs", limit), lambda db, _: db.run_table([], limit=limit)).value
    who = viewer()
    return [row.run_id for row in rows if who.may_see(row.namespace)]


def show_outage(reading: Reading[Any]) -> None:
    """A warning at the top while the metadata store is down: how old the data is, and that updates will resume."""
    outage = reader().outage
    if outage is None:
        return
    st.warning(
        f"The metadata store has not responded for {duration(time.time() - outage.since)}. Showing data from "
        f"{ago(reading.at, time.time())}; updates resume automatically. {markdown(outage.message)}",
        icon=":material/cloud_off:",
    )


def show_no_data(error: NothingReadError) -> None:
    """The warning for when the store is down and nothing older can be shown."""
    st.warning(
        f"The metadata store is not responding. This page loads automatically when it does. {markdown(error)}",
        icon=":material/cloud_off:",
    )


def live(draw: Callable[[], None], key: str, *, lives: bool = True) -> None:
    """Draw the part of the page that follows the store, and the page again when what it was drawn from has changed: a
    viewer is sent nothing while nothing happens. `key` identifies the part; `lives`: it can still change."""
    page: LivePage = st.session_state.setdefault(f"live {key}", LivePage())

    def drawn() -> None:
        reads = PageReads(reader().stillness)
        try:
            with reads.noted():
                draw()
        finally:
            page.drawn(reads, is_down())

    st.fragment(drawn)()
    if lives:
        st.fragment(_follow)(page, key)


def is_down() -> bool:
    """Whether the metadata store has just failed."""
    return reader().outage is not None


def _follow(page: LivePage, key: str) -> None:
    """The browser waits for the server to say that the page is out of date, and then has it looked at here."""
    path = f"{live_updates.PATH}/{page.token}"
    asked = component("dapo_live", "live.js", "follow")(
        data={"path": path, "seconds": settings().refresh_seconds}, key=f"follow {key}", on_look_change=lambda: None
    )
    if asked.look and page.is_out_of_date(is_down):
        st.rerun()


def wait_for_store(error: NothingReadError) -> None:
    """Show that there is no data, and run the whole page again once the metadata store responds."""
    show_no_data(error)
    st.fragment(_rerun_when_up, run_every=settings().refresh_seconds)()


def _rerun_when_up() -> None:
    if reader().is_up():
        st.rerun()
