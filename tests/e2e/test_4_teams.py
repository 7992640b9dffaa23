"""A second team's credentials reach nothing of the first team's."""

import os

import pytest
from e2e_installation import OTHER_TEAM, TEAM, Installation

from dapo_core.db import open_reader
from dapo_core.errors import StoreError
from dapo_core.objectstore import open_store


def test_rows(platform: Installation) -> None:
    with platform.stores(OTHER_TEAM) as secret:
        assert open_reader(secret["DAPO_METADATA_URL"]).runs() == []


def test_objects(platform: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    with platform.stores(OTHER_TEAM) as secret:
        for name, value in secret.items():
            monkeypatch.setenv(name, value)
        theirs = open_store(os.environ["DAPO_STORE_URL"].replace(OTHER_TEAM, TEAM))
        for attempt in (
            lambda: list(theirs.list("")),
            lambda: theirs.get_bytes("arithmetic/made.json"),
            lambda: theirs.put_bytes("arithmetic/made.json", b""),
            lambda: theirs.delete("arithmetic/made.json"),
        ):
            with pytest.raises(StoreError, match="may not"):
                attempt()
