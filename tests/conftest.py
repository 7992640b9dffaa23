"""Settings of all tests."""

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings
from metadata_databases import metadata_url
from needs import needs, on_any_s3_server, without
from patience import patient
from servers.chosen_s3 import CHOICE, s3, s3_server
from servers.minio import minio, tls_minio
from servers.postgres import postgres
from side_by_side import SideBySide, rank

__all__ = ["metadata_url", "minio", "postgres", "s3", "s3_server", "tls_minio"]

# No deadline: tests share processors with whatever else runs, and a slow example is not a wrong one.
settings.register_profile("dapo", deadline=None, max_examples=60)
settings.load_profile("dapo")

# Several workers of pytest-xdist share the processors: threads that wait for each other would take most of them.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"

# Ray reads this when it is imported. Without it, a thread that outlives its test's stand-ins starts a Ray cluster.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"

MAIN = sys.modules["__main__"]


@pytest.fixture(autouse=True)
def main_module() -> Iterator[None]:
    """Put `__main__` back, which Streamlit replaces with a page: processes of multiprocessing would run that page."""
    yield
    sys.modules["__main__"] = MAIN


def pytest_configure(config: pytest.Config) -> None:
    """Where tests that need something are deselected, the others cannot get it: a missing marker fails."""
    without({name for name in ("engine", "server", "browser") if f"not {name}" in config.option.markexpr})


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    for name in needs(item):
        item.add_marker(name)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests, and scale their time limits to the machine. Where an S3 server is chosen, only those that run on
    any stay."""
    if CHOICE in os.environ:
        items[:] = [item for item in items if on_any_s3_server(item)]
    items.sort(key=rank)
    default = float(config.getini("timeout"))
    for item in items:
        limit = item.get_closest_marker("timeout")
        item.add_marker(pytest.mark.timeout(patient(limit.args[0] if limit else default)), append=False)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> SideBySide:
    return SideBySide(config, log)
