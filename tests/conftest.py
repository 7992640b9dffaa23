"""Settings of all tests."""

import pytest
from hypothesis import settings
from metadata_store import metadata_url
from servers.minio import minio, s3, tls_minio
from servers.postgres import postgres

__all__ = ["metadata_url", "minio", "postgres", "s3", "tls_minio"]

# No deadline: tests share processors with whatever else runs, and a slow example is not a wrong one.
settings.register_profile("dapo", deadline=None, max_examples=60)
settings.load_profile("dapo")

# A control plane lives until the last test has run, and is never idle.
_LAST = ("chart", "cluster")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever needs a control plane comes last, so that none idles beside all the others."""
    items.sort(key=lambda item: item.path.parent.name in _LAST)
