"""Jobs that tests start from."""

from typing import Any

from dapo_core.jobspec import DAPOJob, parse_job
from dapo_core.jobspec.presets import merged

MINIMAL: dict[str, Any] = {
    "apiVersion": "dapo.io/v1alpha1",
    "kind": "DAPOJob",
    "metadata": {"name": "first"},
    "spec": {"model": {"source": "hf://a/b"}, "data": {"train": [{"source": "s3://bucket/train.parquet"}]}},
}
VALIDATION = [{"name": "aime", "source": "s3://bucket/aime.parquet"}]


def job(**groups: Any) -> DAPOJob:
    """The smallest job with these groups of its spec over it."""
    return parse_job(merged(MINIMAL, {"spec": groups}))


def dumped(of: DAPOJob) -> dict[str, Any]:
    """A job as it is written out again."""
    return of.model_dump(by_alias=True, mode="json", exclude_none=True)
