"""What a test needs besides Python: an engine, a server, a browser. `make check` runs the tests that need none of them.

Folders say it for engines (tests/engine, tests/real) and for whole clusters; elsewhere the fixtures of a test do.
"""

import sys
from typing import Final

import pytest
from servers.process import Process

ENGINES: Final = frozenset({"ray", "torch", "transfer_queue", "verl", "vllm"})
ENGINE_FOLDERS: Final = frozenset({"engine", "real"})
SERVER_FOLDERS: Final = frozenset({"cluster", "e2e", "install", "queues"})
SERVERS: Final = frozenset(
    {"minio", "tls_minio", "s3", "s3_server", "postgres", "pgbouncer", "kubernetes", "cluster", "audited"}
)
BROWSERS: Final = frozenset({"chromium", "page"})
# Values of parametrized fixtures that ask for a server when the test starts.
SERVER_PARAMETERS: Final = frozenset({"postgres", "S3", "S3 over TLS"})


def needs(item: pytest.Item) -> set[str]:
    """The names of the markers that apply: `engine`, `server`, `browser`."""
    folders = set(item.path.relative_to(item.config.rootpath).parts)
    fixtures = set(getattr(item, "fixturenames", ()))
    callspec = getattr(item, "callspec", None)
    parameters = {value for value in callspec.params.values() if isinstance(value, str)} if callspec else set()
    needed = {
        "engine": bool(folders & ENGINE_FOLDERS),
        "server": bool(folders & SERVER_FOLDERS or fixtures & SERVERS or parameters & SERVER_PARAMETERS),
        "browser": bool(fixtures & BROWSERS),
    }
    return {name for name, applies in needed.items() if applies}


def on_any_s3_server(item: pytest.Item) -> bool:
    """Whether a test is of S3 and needs nothing that only MinIO has."""
    fixtures = set(getattr(item, "fixturenames", ()))
    callspec = getattr(item, "callspec", None)
    wants = bool(fixtures & {"s3", "s3_server"}) or (callspec is not None and "S3" in callspec.params.values())
    return wants and not fixtures & {"minio", "tls_minio"}


def without(absent: set[str]) -> None:
    """Make what these markers stand for unavailable in this process, with a sentence that names the marker."""
    if "engine" in absent:
        sys.addaudithook(_no_engine)  # not a finder: whether verl is installed may be asked
    if "server" in absent:
        Process.start = _no_server  # type: ignore[method-assign,assignment]


def _no_engine(event: str, arguments: tuple[object, ...]) -> None:
    if event == "import" and arguments[0] in ENGINES:
        raise ImportError(f"a test that imports {arguments[0]} belongs in tests/engine")


def _no_server(process: Process) -> None:
    raise RuntimeError(f"a test that starts {process.name} needs `pytestmark = pytest.mark.server`")
