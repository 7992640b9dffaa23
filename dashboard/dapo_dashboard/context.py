"""What every page starts from: the metadata store, who is looking, and what they may see."""

import getpass
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import streamlit as st

from dapo_core.db import AmbiguousRunError, MetadataReader, RunRow
from dapo_core.run.formatting import ago, duration, printable
from dapo_dashboard.escaping import markdown
from dapo_dashboard.reads.cached_reader import CachedReader, NothingReadError, Reading
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


def wait_for_store(error: NothingReadError) -> None:
    """Show that there is no data, and run the whole page again once the metadata store responds."""
    show_no_data(error)
    st.fragment(_rerun_when_up, run_every=settings().refresh_seconds)()


def _rerun_when_up() -> None:
    if reader().is_up():
        st.rerun()
