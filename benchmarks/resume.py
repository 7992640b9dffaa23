"""From `dapo run` to its first step where it resumes from a checkpoint, by how slow the store is.

    python benchmarks/resume.py [--delay 0 40] [--set FIELD=VALUE]...

A run of the demo job stores a checkpoint in a MinIO; other runs resume from it through a proxy that holds back the
tensors' files, all of them at once, for so many seconds. Prints when each phase of the start began: in which of them
the delay was waited for, and whether at all.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from servers.minio import MinioServer  # noqa: E402
from servers.s3_proxy import Fault, proxied  # noqa: E402

from dapo_core.db import open_reader  # noqa: E402

JOB: Final = ROOT / "examples" / "arithmetic.yaml"
LOOK_SECONDS: Final = 0.1
BRIEF: Final = (
    "batch.prompts=8",
    "schedule.validateBefore=false",
    "schedule.validateEvery=100000",
    "data.validation=[]",
)


def dapo_run(home: Path, environment: dict[str, str], settings: Sequence[str], *, whole: bool) -> dict[str, float]:
    """Seconds from the start until each of these phases began; unless `whole`, to the first step's generation only."""
    command = [str(Path(sys.executable).with_name("dapo")), "run", str(JOB), "--plain", "--home", str(home)]
    for setting in (*BRIEF, *settings):
        command += ["--set", setting]
    began, phases = time.time(), dict[str, float]()
    with subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            time.sleep(LOOK_SECONDS)
            for beat in (json.loads(path.read_text()) for path in home.glob("*/attempt-1/heartbeat.json")):
                phases.setdefault(beat["detail"] or beat["phase"], beat["ts"] - began)
            if "generate" in phases and not whole:
                process.kill()
    if whole and process.returncode:
        raise SystemExit(f"resume: dapo run ended with {process.returncode}; see the folders in {home}.")
    return phases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay", type=float, nargs="+", default=[0.0, 40.0])
    parser.add_argument("--set", action="append", default=[], dest="settings")
    given = parser.parse_args()
    server, folder = MinioServer(), Path(tempfile.mkdtemp(prefix="dapo-bench-"))
    try:
        with proxied(server.endpoint) as proxy:
            url = server.url(server.new_bucket(), endpoint=proxy.endpoint)
            stored = [f"checkpoints.uri={url}", *given.settings]
            dapo_run(folder / "first", server.environment, [*stored, "schedule.steps=1"], whole=True)
            origin = open_reader(f"sqlite:///{folder / 'first' / 'dapo.db'}").runs()[0].run_id
            again = [*stored, "schedule.steps=2", f"checkpoints.resumeFrom={origin}@1"]
            for delay in given.delay:
                proxy.faults = lambda method, path, seconds=delay: (  # type: ignore[misc]
                    Fault(delay_seconds=seconds) if method == "GET" and path.endswith(".pt") else None
                )
                phases = dapo_run(folder / f"{delay:g}", server.environment, again, whole=False)
                print(f"files held back for {delay:g} s; each phase began after", flush=True)
                for phase, seconds in phases.items():
                    print(f"  {seconds:7.1f} s  {phase[:60]}", flush=True)
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
