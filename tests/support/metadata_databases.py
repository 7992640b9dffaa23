"""The metadata store on each of its databases, for the tests of one contract."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.postgres import PostgresServer

from dapo_core.db import MetadataReader, MetadataWriter, open_reader, open_writer, upgrade


@pytest.fixture(params=["sqlite", "postgres"])
def metadata_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new store with this program's tables."""
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        return server.new_database(upgraded=True)
    found = f"sqlite:///{tmp_path / 'new folder' / 'dapo.db'}"
    upgrade(found)
    return found


@pytest.fixture
def writer(metadata_url: str) -> Iterator[MetadataWriter]:
    opened = open_writer(metadata_url)
    yield opened
    opened.close()


@pytest.fixture
def reader(metadata_url: str) -> Iterator[MetadataReader]:
    opened = open_reader(metadata_url)
    yield opened
    opened.close()
