"""`make chaos`: the platform on the test cluster, a job that trains with the real engine, and `dapo chaos` on it.

All arguments are passed on to `dapo chaos`. What is there already is used: a second storm begins at once. Afterwards
the driver's record of each group is compared with the data queue and with Postgres.
"""

import os
import subprocess
import sys
from pathlib import Path

from e2e_installation import JOB, RELEASE, ROOT, TEAM, Installation
from group_ledger import GroupLedger, ledger_of, read_records

from dapo_core.db import open_reader
from dapo_core.objectstore import open_store
from dapo_core.run.fault_outcomes import ACCOUNT_METRICS

# The job starts, and makes a few steps, before the first fault.
START_SECONDS = 900
FIRST_STEPS = 3


def ready(platform: Installation) -> None:
    """Install the platform and submit the job, unless it trains already; returns once it has made its first steps."""
    if RELEASE not in platform.helm("list", "--short").split():
        platform.install()
    if not any(job["metadata"]["name"] == JOB for job in platform.get("dapojobs")["items"]):
        platform.submit()
    platform.wait(
        f"{FIRST_STEPS} steps by all pods",
        lambda: platform.step() >= FIRST_STEPS and platform.status().get("pods") == "4/4",
        START_SECONDS,
    )


def ledger_between(platform: Installation, stores: dict[str, str], first: int, last: int) -> GroupLedger:
    """The groups of the steps after `first`, up to `last`."""
    run, reader = platform.status()["runId"], open_reader(stores["DAPO_METADATA_URL"])
    curves = {
        name: [point for point in reader.curve(run, name, first) if point.step <= last] for name in ACCOUNT_METRICS
    }
    steps = sorted({(point.attempt, point.step) for curve in curves.values() for point in curve})
    os.environ.update(stores)  # the client of the object store takes its keys from there
    return ledger_of(curves, read_records(open_store(stores["DAPO_STORE_URL"]), run, steps))


def main(arguments: list[str]) -> int:
    """The exit code of `dapo chaos`; 1 if groups are missing or there twice."""
    script = ROOT / "tests" / "kit" / "cluster.sh"
    kubeconfig = Path(subprocess.check_output([script, "kubeconfig"], text=True).strip())
    platform = Installation(kubeconfig, ROOT / ".dapo" / "e2e")
    ready(platform)
    with platform.stores() as stores:
        first = platform.step()
        command = [str(Path(sys.executable).with_name("dapo")), "chaos", JOB, "--namespace", TEAM, *arguments]
        environment = {**os.environ, **stores, "KUBECONFIG": str(kubeconfig)}
        code = subprocess.run(command, env=environment).returncode
        # The record of the newest step may be on its way.
        ledger = ledger_between(platform, stores, first, platform.step() - 1)
    print(ledger, file=sys.stderr)  # --json is alone on standard output
    return code or int(not ledger.is_balanced)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
