"""Checkpoints to S3: how fast uploads and downloads are, and how much they slow training.

    python benchmarks/checkpoints.py [--megabytes 512] [--files 4] [--rounds 5] [--json FILE]
    python benchmarks/checkpoints.py --run [--job examples/arithmetic.yaml] [--steps 40] [--ballast 1000]
    python benchmarks/checkpoints.py --processor [--megabytes 512] [--rounds 3]

Without --run: the same files, of one random checkpoint, to the same MinIO on this machine, in turns, by
 - ours: `CheckpointStore.commit`, which also takes the SHA-256 of every file and writes the manifest last;
 - boto3: the transfer manager with its defaults (8 MiB parts, ten requests at a time), all files at once;
 - mc: MinIO's own client, `mc cp --recursive` with its defaults;
and back by ours (every file verified) and boto3, which compares nothing. Prints medians and ratios. Needs
`scripts/bench-setup.sh` and Go, or mc in the tools' cache; both are made on the first call. Then the seconds of a step
that keeps every core busy, with and without an upload beside it, and which share of CPU time the upload and the
server had meanwhile.

With --run: a real `dapo run` with checkpoints to MinIO, each with files of --ballast megabytes beside the model's, so
that its upload lasts longer than a step; how much longer than steps without an upload the one after a checkpoint takes,
and all that had an upload beside them. The same once more with the ballast saved and not uploaded: a save is not over
with its step, the system writes to the disk beside the next ones. (The save itself is a part of the step before.)

With --processor: CPU seconds of this process for each gigabyte that it uploads, over plain HTTP and with TLS, and what
reading and hashing the same files takes of them. The least of the rounds: other programs can only add to it.

The server has a machine of its own in truth; on this one it gives way to whatever trains, as far as the system lets it.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from servers.minio import ROOT as KEYS  # noqa: E402
from servers.minio import MinioServer  # noqa: E402
from servers.tools import tool  # noqa: E402

from dapo_core.db import CurvePoint, open_reader  # noqa: E402
from dapo_core.objectstore.contract import CHUNK  # noqa: E402
from dapo_core.objectstore.s3 import open_s3  # noqa: E402
from dapo_core.run.checkpoint import Retention  # noqa: E402
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore, LocalCheckpoint  # noqa: E402
from dapo_trainer.checkpoints.uploader import CheckpointUploader  # noqa: E402

# Times itself: the start of Python and the import of boto3 are not counted.
BOTO = """
import json, sys, time
import boto3
from boto3.s3.transfer import TransferConfig, create_transfer_manager
direction, endpoint, bucket, prefix, access, secret, *files = sys.argv[1:]
client = boto3.client("s3", endpoint_url=endpoint, aws_access_key_id=access, aws_secret_access_key=secret,
                      region_name="us-east-1")
began = time.perf_counter()
with create_transfer_manager(client, TransferConfig()) as manager:
    for number, file in enumerate(files):
        key = f"{prefix}/{number}"
        if direction == "up":
            manager.upload(file, bucket, key)
        else:
            manager.download(bucket, key, file)
print(json.dumps(time.perf_counter() - began))
"""


class Bench:
    def __init__(self, folder: Path, megabytes: int, files: int, *, tls: bool = False) -> None:
        self.folder = folder
        self.server = MinioServer(tls=tls)
        self.bucket = self.server.new_bucket()
        self.local = folder / "global_step_1"
        (self.local / "actor").mkdir(parents=True)
        self.files = []
        for number in range(files):
            path = self.local / "actor" / f"model_world_size_{files}_rank_{number}.pt"
            block = os.urandom(1024 * 1024)
            with path.open("wb") as stream:
                for turn in range(megabytes // files):
                    stream.write(turn.to_bytes(8, "big") + block[8:])
            self.files.append(path)
        self.megabytes = sum(path.stat().st_size for path in self.files) / 1e6

    @cached_property
    def python(self) -> str:
        """That has boto3."""
        return subprocess.check_output([str(ROOT / "scripts" / "bench-setup.sh")], text=True).strip()

    def checkpoints(self, run: str) -> CheckpointStore:
        return CheckpointStore(open_s3(self.server.url(self.bucket), self.server.environment), run)

    def empty(self) -> None:
        for found in self.server.client.list_objects(self.bucket, recursive=True):
            self.server.client.remove_object(self.bucket, str(found.object_name))

    # One way up or down each; seconds.

    def ours_up(self) -> float:
        began = time.perf_counter()
        self.checkpoints("ours").commit(LocalCheckpoint(1, self.local, 1, "d"))
        return time.perf_counter() - began

    def ours_down(self) -> float:
        checkpoints = self.checkpoints("ours")
        manifest = checkpoints.manifest(1)
        began = time.perf_counter()
        checkpoints.restore(manifest, self.folder / "restored")
        return time.perf_counter() - began

    def boto_up(self) -> float:
        return self._boto("up", self.files)

    def boto_down(self) -> float:
        target = self.folder / "boto"
        target.mkdir(exist_ok=True)
        return self._boto("down", [target / path.name for path in self.files])

    def _boto(self, direction: str, files: list[Path]) -> float:
        words = [direction, self.server.endpoint, self.bucket, "boto", *KEYS, *map(str, files)]
        seconds: float = json.loads(subprocess.check_output([self.python, "-c", BOTO, *words], text=True))
        return seconds

    def mc_up(self) -> float:
        host = self.server.endpoint.replace("://", f"://{KEYS[0]}:{KEYS[1]}@")
        environment = os.environ | {"MC_HOST_bench": host, "MC_CONFIG_DIR": str(self.folder / "mc")}
        command = [str(tool("mc")), "cp", "--recursive", "--quiet", f"{self.local}/", f"bench/{self.bucket}/mc/"]
        began = time.perf_counter()
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began


def transfers(bench: Bench, rounds: int) -> dict[str, float]:
    """Medians over rounds; the order alternates, and the server holds the same objects for each."""
    ups: dict[str, Callable[[], float]] = {"ours": bench.ours_up, "boto3": bench.boto_up, "mc": bench.mc_up}
    downs: dict[str, Callable[[], float]] = {"ours": bench.ours_down, "boto3": bench.boto_down}
    seconds: dict[str, list[float]] = {}
    for turn in range(rounds + 1):
        for label, ways in (("up", ups), ("down", downs)):
            names = list(ways)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                took = ways[name]()
                if turn:  # the first round warms everybody up
                    seconds.setdefault(f"{name} {label}", []).append(took)
        bench.empty()
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def read_files(files: Sequence[Path], *, hashed: bool) -> None:
    """Read files as an upload does, block by block into memory that is used again."""
    block = memoryview(bytearray(CHUNK))
    for path in files:
        digest = hashlib.sha256()
        with path.open("rb", buffering=0) as stream:
            while length := stream.readinto(block):
                if hashed:
                    digest.update(block[:length])


def processor_costs(folder: Path, megabytes: int, files: int, rounds: int) -> dict[str, float]:
    """CPU seconds of this process for each gigabyte; the least of the rounds."""
    taken: dict[str, list[float]] = {}
    for tls in (False, True):
        bench = Bench(folder / f"tls-{tls}", megabytes, files, tls=tls)
        try:
            works: dict[str, Callable[[], object]] = {f"upload, {'TLS' if tls else 'HTTP'}": bench.ours_up}
            if not tls:
                works["reading the files"] = partial(read_files, bench.files, hashed=False)
                works["reading and hashing them"] = partial(read_files, bench.files, hashed=True)
            for _ in range(rounds):
                for name, work in works.items():
                    began = time.process_time()
                    work()
                    taken.setdefault(name, []).append((time.process_time() - began) / bench.megabytes * 1e3)
                bench.empty()
        finally:
            bench.server.close()
    return {f"{name}: CPU seconds for a GB": min(each) for name, each in taken.items()}


def burn(begin: Any, ended: Any, seconds: float) -> None:
    """One core's share of a step: a fixed amount of work, measured once."""
    import torch

    torch.set_num_threads(1)
    left, right = torch.rand(512, 512), torch.rand(512, 512)
    began = time.perf_counter()
    turns = 0
    while time.perf_counter() - began < seconds:
        torch.mm(left, right)
        turns += 1
    while True:
        begin.wait()
        for _ in range(turns):
            torch.mm(left, right)
        ended.wait()


def stand_aside(server: MinioServer) -> None:
    """Give the server the lowest CPU priority."""
    for thread in os.listdir(f"/proc/{server.process.pid}/task"):
        os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))
    # Sessions that a system gives a share each would else be equals, whatever is in them.
    theirs, ours = Path(f"/proc/{server.process.pid}/autogroup"), Path("/proc/self/autogroup")
    if theirs.exists() and theirs.read_text().split()[:1] != ours.read_text().split()[:1]:
        theirs.write_text("19")


def processor_seconds(process: int) -> float:
    """CPU time that the process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def beside(bench: Bench, steps: int, seconds: float) -> dict[str, float]:
    """Steps that keep every core busy; after every sixth a checkpoint is handed over."""
    stand_aside(bench.server)
    cores = os.cpu_count() or 1
    context = multiprocessing.get_context("spawn")
    begin, ended = context.Barrier(cores + 1), context.Barrier(cores + 1)
    workers = [context.Process(target=burn, args=(begin, ended, seconds), daemon=True) for _ in range(cores)]
    for worker in workers:
        worker.start()
    uploader = CheckpointUploader(bench.checkpoints("beside"), Retention(keep_last=1))
    taken: list[tuple[bool, float, float, float]] = []
    for step in range(steps):
        busy = bool(uploader.busy)
        began, ours, servers = time.perf_counter(), time.process_time(), processor_seconds(bench.server.process.pid)
        begin.wait()
        ended.wait()
        took = time.perf_counter() - began
        had = time.process_time() - ours, processor_seconds(bench.server.process.pid) - servers
        # A step at whose end the upload is done had it beside only in part.
        if step > 2 and busy == bool(uploader.busy):
            taken.append((busy, took, had[0] / took / cores, had[1] / took / cores))
        if step % 6 == 5:
            uploader.wait(120)
            folder = bench.folder / f"global_step_{step}"
            shutil.copytree(bench.local, folder)
            uploader.upload(LocalCheckpoint(step, folder, 1, "d"))
    uploader.close(120)
    for worker in workers:
        worker.kill()
    idle = statistics.median(took for busy, took, *_ in taken if not busy)
    loaded, ours, servers = (
        statistics.median(column) for column in zip(*(rest for busy, *rest in taken if busy), strict=True)
    )
    return {
        "step": idle,
        "step beside an upload": loaded,
        "ratio": loaded / idle,
        "share of the processors: the upload": ours,
        "share of the processors: the server": servers,
        "steps wholly beside an upload": sum(busy for busy, *_ in taken),
        "failures": uploader.failures,
    }


# In the trainer's process, by a module that Python imports when it starts.
BALLAST = """
import os, sys
from pathlib import Path
if any("dapo_trainer" in word for word in sys.orig_argv):
    from dapo_trainer.checkpoints.uploader import CheckpointUploader
    upload = CheckpointUploader.upload

    def with_ballast(self, checkpoint):
        block = os.urandom(1 << 20)
        stays = Path(os.environ["BALLAST_STAYS"]) if "BALLAST_STAYS" in os.environ else checkpoint.folder
        for number in range(4):
            with open(stays / f"ballast-{number}.bin", "wb") as file:
                for turn in range(int(os.environ["BALLAST_MB"]) // 4):
                    file.write(turn.to_bytes(8, "big") + block[8:])
        upload(self, checkpoint)

    CheckpointUploader.upload = with_ballast
"""


def run(job: Path, steps: int, every: int, ballast: int, *, uploaded: bool) -> dict[str, float]:
    """A real run with checkpoints to MinIO: the steps after them against those without an upload. Without
    `uploaded`, the ballast is saved but not uploaded."""
    server = MinioServer()
    stand_aside(server)
    folder = Path(tempfile.mkdtemp(prefix="dapo-bench-"))
    try:
        (folder / "sitecustomize.py").write_text(BALLAST)
        url = server.url(server.new_bucket())
        settings = [f"schedule.steps={steps}", f"schedule.checkpointEvery={every}", "schedule.validateEvery=100000"]
        settings += ["schedule.validateBefore=false", "schedule.logSamplesEvery=100000", f"checkpoints.uri={url}"]
        command = [str(Path(sys.executable).with_name("dapo")), "run", str(job), "--plain", "--home", str(folder)]
        for setting in settings:
            command += ["--set", setting]
        environment = os.environ | server.environment | {"PYTHONPATH": str(folder), "BALLAST_MB": str(ballast)}
        if not uploaded:
            environment["BALLAST_STAYS"] = tempfile.mkdtemp(dir=folder)
        subprocess.run(command, env=environment, check=True)
        reader = open_reader(f"sqlite:///{folder / 'dapo.db'}")
        run_id = reader.runs()[0].run_id
        curve = reader.curve(run_id, "timing_s/step")
        committed = {event.step: event.ts for event in reader.events(run_id) if event.reason == "CheckpointCommitted"}
        return after_checkpoints(curve, {step: ts for step, ts in committed.items() if step is not None}, every)
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


def after_checkpoints(curve: Sequence[CurvePoint], committed: Mapping[int, float], every: int) -> dict[str, float]:
    """`committed`: when, by step. The step of a checkpoint has the local save in it and counts for neither side, as
    does the first of all."""
    ended = {point.step: point.ts for point in curve}
    took = {point.step: point.number for point in curve if point.step % every and point.step > 2}
    until = {step: committed.get(step - step % every, 0.0) for step in took}  # the end of the last upload before it
    alone = statistics.median(took[step] for step in took if until[step] < ended[step] - took[step])
    covered = [step for step in took if until[step] >= ended[step]]
    after = [step + 1 for step in committed if step + 1 in took]
    return {
        "step without an upload, median (s)": alone,
        "step after a checkpoint / that, median": statistics.median(took[step] for step in after) / alone,
        "the same, longest": max(took[step] for step in after) / alone,
        "checkpoints": len(after),
        "upload, median (s)": statistics.median(committed[step] - ended[step] for step in committed if step in ended),
        "steps wholly beside an upload": len(covered),
        "such a step / that, median": statistics.median(took[step] for step in covered) / alone if covered else 0.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--step-seconds", type=float, default=2.0)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--processor", action="store_true")
    parser.add_argument("--job", type=Path, default=ROOT / "examples" / "arithmetic.yaml")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=8)
    parser.add_argument("--ballast", type=int, default=1000, help="with --run: megabytes beside the model's files")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    figures: dict[str, float]
    if given.run:
        settings = given.job, given.steps, given.every, given.ballast
        saved, stored = run(*settings, uploaded=False), run(*settings, uploaded=True)
        figures = {f"saved: {name}": figure for name, figure in saved.items()}
        figures |= {f"stored: {name}": figure for name, figure in stored.items()}
        after = "step after a checkpoint / that, median"
        figures["step after a checkpoint: stored / saved"] = stored[after] / saved[after]
    elif given.processor:
        with tempfile.TemporaryDirectory(prefix="dapo-bench-") as folder:
            figures = processor_costs(Path(folder), given.megabytes, given.files, given.rounds)
    else:
        with tempfile.TemporaryDirectory(prefix="dapo-bench-") as folder:
            bench = Bench(Path(folder), given.megabytes, given.files)
            try:
                figures = transfers(bench, given.rounds)
                for name, seconds in list(figures.items()):
                    figures[f"{name}, MB/s"] = bench.megabytes / seconds
                for other in ("boto3 up", "mc up", "boto3 down"):
                    figures[f"{other} / ours"] = figures[other] / figures[f"ours {other.split()[1]}"]
                figures |= beside(bench, given.steps, given.step_seconds)
            finally:
                bench.server.close()
    for name, figure in figures.items():
        print(f"{name:<50} {figure:10.3f}")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
