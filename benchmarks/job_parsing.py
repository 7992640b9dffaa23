"""Milliseconds to parse a valid job, beside one validation of the same job by pydantic, and to diagnose an invalid one.

    python benchmarks/job_parsing.py [JOB.YAML]

Medians of 300 calls in turns. The operator parses every job once per generation, and all of them when it starts.
"""

import argparse
import platform
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from dapo_core.errors import SpecError
from dapo_core.jobspec import DAPOJob, absolute_paths, parse_job, read_mapping

ROOT = Path(__file__).parents[1]
CALLS = 300


def milliseconds(work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return (perf_counter() - began) * 1000


def diagnose(job: dict[str, Any]) -> None:
    with suppress(SpecError):
        parse_job(job)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("job", nargs="?", type=Path, default=ROOT / "examples" / "arithmetic.yaml")
    path = parser.parse_args().job
    job = absolute_paths(read_mapping(path), path.resolve().parent)
    invalid = {**job, "spec": {**job["spec"], "schedule": {"steps": 1, "epochs": 1}}}
    calls: dict[str, Callable[[], object]] = {
        "model_validate": lambda: DAPOJob.model_validate(job),
        "parse_job": lambda: parse_job(job),
        "parse_job, invalid": lambda: diagnose(invalid),
    }
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(CALLS):
        for name, call in calls.items():
            taken[name].append(milliseconds(call))
    one = median(taken["model_validate"])
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {path.name}")
    for name, times in taken.items():
        print(f"{median(times):8.2f} ms  {median(times) / one:6.2f} x  {name}")


if __name__ == "__main__":
    main()
