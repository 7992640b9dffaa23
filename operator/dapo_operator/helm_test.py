"""`python -m dapo_operator.helm_test JOB.yaml`: submit a job, wait for its first step, delete it; for `helm test`."""

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from dapo_operator.jobs.dapojob import JOBS
from dapo_operator.kube.client import KubeClient
from dapo_operator.kube.connection import NoClusterError, connect
from dapo_operator.kube.objects import ApiError, NotFoundError, Object

POLL_SECONDS: Final = 2.0
DELETE_SECONDS: Final = 120.0


def verdict(job: Mapping[str, Any]) -> tuple[bool | None, str]:
    """Whether the test is passed (None: not known yet), and a line about the job's state."""
    status = job.get("status") or {}
    true = [condition for condition in status.get("conditions") or () if condition["status"] == "True"]
    failed = next((condition for condition in true if condition["type"] == "Failed"), None)
    if failed is not None:
        return False, f"Failed, {failed['reason']}: {failed['message']}"
    step = (status.get("progress") or {}).get("step") or 0
    if step or any(condition["type"] == "Succeeded" for condition in true):
        return True, f"finished step {step}"
    return None, ", ".join(f"{condition['type']} ({condition['reason']})" for condition in true) or "no condition yet"


async def submit_and_wait(kube: KubeClient, job: Object, seconds: float) -> bool:
    """Submit the job and print its state until the first step, a failure or the timeout; returns whether it passed."""
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    await _remove(kube, namespace, name)
    await kube.create(JOBS, job)
    end, printed = time.monotonic() + seconds, ""
    try:
        while time.monotonic() < end:
            passed, line = verdict(await kube.get(JOBS, namespace, name))
            if line != printed:
                print(f"{namespace}/{name}: {line}", flush=True)
                printed = line
            if passed is not None:
                return passed
            await asyncio.sleep(POLL_SECONDS)
        hint = "see `kubectl describe dapojob` and the logs of its pods"
        print(f"{namespace}/{name}: timed out waiting for the first step ({seconds:.0f} s); {hint}")
        return False
    finally:
        await _remove(kube, namespace, name)


async def _remove(kube: KubeClient, namespace: str, name: str) -> None:
    """Delete the job and wait until it is gone. Raises ApiError, also when that takes too long."""
    end = time.monotonic() + DELETE_SECONDS
    try:
        await kube.delete(JOBS, namespace, name)
        while time.monotonic() < end:
            await kube.get(JOBS, namespace, name)
            await asyncio.sleep(POLL_SECONDS / 4)
    except NotFoundError:
        return
    raise ApiError(f"Timed out waiting for {namespace}/{name} to be deleted ({DELETE_SECONDS:.0f} s).")


async def _main(job: Object, seconds: float) -> int:
    try:
        kube = KubeClient(await connect())
        try:
            return 0 if await submit_and_wait(kube, job, seconds) else 1
        finally:
            await kube.close()
    except (ApiError, NoClusterError) as error:
        print(error, file=sys.stderr)
        return 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("--seconds", type=float, default=600.0)
    arguments = parser.parse_args()
    return asyncio.run(_main(yaml.safe_load(arguments.job.read_text()), arguments.seconds))


if __name__ == "__main__":
    sys.exit(main())
