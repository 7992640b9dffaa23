"""A metadata store in a SQLite file, for tests that are not about its databases."""

from pathlib import Path

import pytest

from dapo_core.db import MetadataReader, MetadataWriter, open_reader, open_writer, upgrade


@pytest.fixture
def url(tmp_path: Path) -> str:
    found = f"sqlite:///{tmp_path / 'dapo.db'}"
    upgrade(found)
    return found


@pytest.fixture
def writer(url: str) -> MetadataWriter:
    return open_writer(url)


@pytest.fixture
def reader(url: str) -> MetadataReader:
    return open_reader(url)
