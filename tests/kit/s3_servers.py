"""s3_servers.py [SERVER...]: the tests of object stores on each of these S3 servers, by default on all that can be
started, one after the other. What passed is kept in s3-servers.json, of which `make generate` makes the table in
docs/stores.md. `make s3-servers` runs it."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as Xml

ROOT: Final = Path(__file__).resolve().parents[2]
KEPT: Final = Path(__file__).with_name("s3-servers.json")
# By the name that the tests know: the programs that it consists of.
SERVERS: Final = {
    "minio": ("minio",),
    "versitygw": ("versitygw",),
    "azure": ("versitygw", "azurite"),
    "ceph": ("ceph",),
}
# What the tests of a file are of.
TESTS: Final = {
    "the contract of object stores": "tests/core/test_objectstore.py",
    "large files, broken connections, errors": "tests/core/test_s3_store.py",
    "checkpoints on bad days": "tests/trainer/test_checkpoint_faults.py",
    "killed while committing": "tests/trainer/test_checkpoints.py",
    "`dapo checkpoints`": "tests/trainer/test_checkpoint_tool.py",
}


def results(server: str) -> dict[str, list[int]]:
    """By what is tested: how many tests passed on a server, and how many there are. Raises SystemExit without any."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-n0", f"--junitxml={report}", *TESTS.values()]
        subprocess.run(command, cwd=ROOT, env=os.environ | {"DAPO_TEST_S3_SERVER": server}, check=False)
        if not report.exists():
            raise SystemExit(f"s3-servers: no test ran on {server}; see the errors above.")
        cases = list(Xml.parse(report).iter("testcase"))
    counts = {}
    for label, file in TESTS.items():
        of_file = [case for case in cases if case.get("classname", "").split(".")[-1] == Path(file).stem]
        failed = [case for case in of_file if any(case.find(kind) is not None for kind in ("failure", "error"))]
        counts[label] = [len(of_file) - len(failed), len(of_file)]
    return counts


def version(server: str) -> str:
    """The pinned versions of a server's programs: their folders are named after them."""
    command = [str(ROOT / "tests/kit/tools.sh"), *SERVERS[server]]
    programs = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return " and ".join(Path(program).parent.name.rpartition("-")[2] for program in programs)


def main(servers: list[str]) -> int:
    if unknown := set(servers) - set(SERVERS):
        raise SystemExit(f"s3-servers: {', '.join(sorted(unknown))} must be one of {', '.join(SERVERS)}.")
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for server in servers or SERVERS:
        print(f"s3-servers: {server} {version(server)}", flush=True)
        kept[server] = {"version": version(server), "passed": results(server)}
        KEPT.write_text(json.dumps({name: kept[name] for name in SERVERS if name in kept}, indent=2) + "\n")
    return any(passed < total for server in kept.values() for passed, total in server["passed"].values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
