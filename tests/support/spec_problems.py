"""What is wrong with a job file, as its sentences."""

from typing import Any

import pytest
from builders import MINIMAL

from dapo_core.errors import Problem, SpecError
from dapo_core.jobspec import parse_job
from dapo_core.jobspec.presets import merged

TRAIN = [{"source": "s3://bucket/train.parquet"}]
READABLE = "use hf://, s3://, file:/// or pvc://."


def problems(data: dict[str, Any]) -> list[Problem]:
    with pytest.raises(SpecError) as refused:
        parse_job(data)
    return refused.value.problems


def messages(spec: dict[str, Any], **top: Any) -> list[str]:
    return [problem.message for problem in problems(merged(MINIMAL, {"spec": spec, **top}))]


def case(name: str, sentence: str, **spec: Any) -> Any:
    return pytest.param(spec, f"spec.{sentence}", id=name)
