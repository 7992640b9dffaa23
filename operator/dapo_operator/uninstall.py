"""`python -m dapo_operator.uninstall`: what has to happen before the operator is removed, for Helm's pre-delete hook.

Nobody would take the operator's finalizer off a DAPOJob afterwards: the job, its namespace and the
CustomResourceDefinition could not be deleted any more.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Final

from dapo_operator.jobs.dapojob import FINALIZER, JOBS, without_finalizer
from dapo_operator.kube.client import KubeClient
from dapo_operator.kube.connection import NoClusterError, connect
from dapo_operator.kube.objects import ApiError, ConflictError, NotFoundError, Object

POLL_SECONDS: Final = 2.0


async def delete_jobs(kube: KubeClient, namespaces: Sequence[str | None], seconds: float) -> int:
    """Delete all jobs and wait until the operator has ended them; returns how many are left after the timeout. Raises
    ApiError."""
    end = time.monotonic() + seconds
    for raw in await _jobs(kube, namespaces):
        try:
            await kube.delete(JOBS, raw["metadata"]["namespace"], raw["metadata"]["name"])
        except NotFoundError:
            continue
    while (left := len(await _jobs(kube, namespaces))) and time.monotonic() < end:
        await asyncio.sleep(POLL_SECONDS)
    return left


async def release_jobs(kube: KubeClient, namespaces: Sequence[str | None]) -> int:
    """Take the operator's finalizer off all jobs; returns off how many. Raises ApiError."""
    released = 0
    while held := [raw for raw in await _jobs(kube, namespaces) if FINALIZER in raw["metadata"].get("finalizers", ())]:
        for raw in held:
            released += await _release(kube, raw)
    return released


async def _release(kube: KubeClient, raw: Object) -> bool:
    """Whether the finalizer was taken off this state of the job; False when there is a newer one."""
    meta = raw["metadata"]
    try:
        await kube.patch(JOBS, meta["namespace"], meta["name"], without_finalizer(raw, meta["uid"]))
    except (ConflictError, NotFoundError):
        return False
    return True


async def _jobs(kube: KubeClient, namespaces: Sequence[str | None]) -> list[Object]:
    return [raw for namespace in namespaces for raw in (await kube.list(JOBS, namespace, metadata_only=True))[0]]


async def _main(namespaces: Sequence[str | None], delete: bool, seconds: float) -> int:
    try:
        kube = KubeClient(await connect())
        try:
            if delete and (left := await delete_jobs(kube, namespaces, seconds)):
                print(f"{left} jobs did not end within {seconds:.0f} s; they are removed with the resource definition.")
            print(f"Took the finalizer {FINALIZER} off {await release_jobs(kube, namespaces)} jobs.")
        finally:
            await kube.close()
    except (ApiError, NoClusterError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def main() -> int:
    """0 once no job has the finalizer; 1 when the API server could not be used."""
    parser = argparse.ArgumentParser(prog="python -m dapo_operator.uninstall", description=__doc__)
    parser.add_argument("--namespaces", default="", help="Separated by commas. Default: all.")
    parser.add_argument("--delete-jobs", action="store_true", help="Delete the jobs first.")
    parser.add_argument("--seconds", type=float, default=300.0, help="How long jobs may take to end. Default: 300.")
    options = parser.parse_args()
    namespaces = [name for name in options.namespaces.split(",") if name] or [None]
    return asyncio.run(_main(namespaces, options.delete_jobs, options.seconds))


if __name__ == "__main__":
    sys.exit(main())
