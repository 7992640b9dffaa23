"""`python -m dapo_operator.helm_test JOB.yaml`: submit a job, wait for its first step, delete it; for `helm test`."""

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from dapo_operator.kube.client import Kube, Object
from dapo_operator.kube.errors import ApiError, NotFoundError
from dapo_operator.kube.resources import JOBS
from dapo_operator.main import connection

LOOK_SECONDS: Final = 2.0
GONE_SECONDS: Final = 120.0


def verdict(job: Mapping[str, Any]) -> tuple[bool | None, str]:
    """Whether the trial is passed (None: not known yet), and a line that says how the job is."""
    status = job.get("status") or {}
    held = [each for each in status.get("conditions") or () if each["status"] == "True"]
    failed = next((each for each in held if each["type"] == "Failed"), None)
    if failed is not None:
        return False, f"Failed, {failed['reason']}: {failed['message']}"
    step = (status.get("progress") or {}).get("step") or 0
    if step or any(each["type"] == "Succeeded" for each in held):
        return True, f"step {step} is trained"
    return None, ", ".join(f"{each['type']} ({each['reason']})" for each in held) or "no condition yet"


async def attempt(kube: Kube, job: Object, seconds: float) -> bool:
    """Print what becomes of the job until its first step, its failure or the end of the time."""
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    await _remove(kube, namespace, name)
    await kube.create(JOBS, job)
    end, said = time.monotonic() + seconds, ""
    try:
        while time.monotonic() < end:
            passed, line = verdict(await kube.get(JOBS, namespace, name))
            if line != said:
                print(f"{namespace}/{name}: {line}", flush=True)
                said = line
            if passed is not None:
                return passed
            await asyncio.sleep(LOOK_SECONDS)
        print(
            f"{namespace}/{name}: no step after {seconds:.0f} s; `kubectl describe dapojob` and the pods' logs say why"
        )
        return False
    finally:
        await _remove(kube, namespace, name)


async def _remove(kube: Kube, namespace: str, name: str) -> None:
    """Raises ApiError, also when the job does not go."""
    end = time.monotonic() + GONE_SECONDS
    try:
        await kube.delete(JOBS, namespace, name)
        while time.monotonic() < end:
            await kube.get(JOBS, namespace, name)
            await asyncio.sleep(LOOK_SECONDS / 4)
    except NotFoundError:
        return
    raise ApiError(f"{namespace}/{name} is still there {GONE_SECONDS:.0f} s after it was deleted.")


async def _main(job: Object, seconds: float) -> int:
    kube = Kube(connection())
    try:
        return 0 if await attempt(kube, job, seconds) else 1
    except ApiError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        await kube.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("--seconds", type=float, default=600.0)
    arguments = parser.parse_args()
    return asyncio.run(_main(yaml.safe_load(arguments.job.read_text()), arguments.seconds))


if __name__ == "__main__":
    sys.exit(main())
