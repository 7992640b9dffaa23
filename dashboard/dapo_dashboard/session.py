"""What every page starts from: the source, who is looking, and what they may see."""

import getpass
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import streamlit as st

from dapo_core.db import RunRow
from dapo_core.db.pages import PageReader
from dapo_core.run.formatting import ago, duration
from dapo_dashboard.plain import markdown
from dapo_dashboard.reads.access import read_access
from dapo_dashboard.reads.source import NothingYetError, Reading, Source
from dapo_dashboard.settings import Settings

T = TypeVar("T")
Load = Callable[[PageReader, T | None], T]


@dataclass(frozen=True)
class Viewer:
    """Who is looking. `namespaces` None: all of them."""

    name: str
    namespaces: frozenset[str] | None

    def may_see(self, namespace: str) -> bool:
        """Whether runs of this namespace are theirs to see."""
        return self.namespaces is None or namespace in self.namespaces


@st.cache_resource(show_spinner=False)
def _settings() -> Settings:
    return Settings.from_env()


@st.cache_resource(show_spinner=False)
def _source() -> Source:
    return Source(settings().metadata_url)


def settings() -> Settings:
    """Of this server; read once."""
    read: Settings = _settings()
    return read


def source() -> Source:
    """One for all viewers of this server."""
    shared: Source = _source()
    return shared


def login_is_set_up() -> bool:
    """Whether the server's secrets name an identity provider."""
    try:
        return "auth" in st.secrets
    except FileNotFoundError:
        return False


def viewer() -> Viewer:
    """Who is looking at this page. Without a login set up, whoever reaches the server sees all."""
    if not login_is_set_up():
        return Viewer(getpass.getuser(), None)
    user: dict[str, Any] = st.user.to_dict()
    name = user.get("email") or user.get("preferred_username") or user.get("sub") or "unknown"
    return Viewer(str(name), read_access(settings().access_file).namespaces(user))


def read_run(name: str) -> Reading[RunRow | None]:
    """The run, whoever may see it. Raises NothingYetError."""
    return source().read(("run", name), lambda reader, _: reader.run(name))


def find_run(name: str) -> RunRow | None:
    """The run, if there is one and the viewer may see it: what may not be seen does not exist."""
    found = read_run(name).value
    return found if found is not None and viewer().may_see(found.namespace) else None


def tell_trouble(reading: Reading[Any]) -> None:
    """A line at the top while the store does not answer: how old what is shown is, and that the page will go on."""
    trouble = source().trouble
    if trouble is None:
        return
    st.warning(
        f"The metadata store has not answered for {duration(time.time() - trouble.since)}. Shown is what was read "
        f"{ago(reading.at, time.time())}. This page goes on by itself when it does. {markdown(trouble.message)}",
        icon=":material/cloud_off:",
    )


def stop_without_data(error: NothingYetError) -> None:
    """The store is down and nothing was ever read: say so, and look again."""
    st.warning(
        f"The metadata store does not answer. This page goes on by itself when it does. {markdown(error)}",
        icon=":material/cloud_off:",
    )


def wait_for_store() -> None:
    """For a fragment that looks again: begin the page anew once the store answers."""
    if source().answers():
        st.rerun()
