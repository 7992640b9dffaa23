"""Settings of all tests."""

from hypothesis import settings
from metadata_store import metadata_url
from servers.minio import minio, s3, tls_minio
from servers.postgres import postgres

__all__ = ["metadata_url", "minio", "postgres", "s3", "tls_minio"]

# No deadline: tests share processors with whatever else runs, and a slow example is not a wrong one.
settings.register_profile("dapo", deadline=None, max_examples=60)
settings.load_profile("dapo")
