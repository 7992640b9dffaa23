"""Checkpoints to S3: how fast they go up and down, and what training feels of it.

    python benchmarks/checkpoints.py [--megabytes 512] [--files 4] [--rounds 5] [--json FILE]
    python benchmarks/checkpoints.py --run [--job examples/arithmetic.yaml] [--steps 60]

Without --run: the same files, of one random checkpoint, to the same MinIO on this machine, in turns, by
 - ours: `CheckpointStore.commit`, which also takes the SHA-256 of every file and writes the manifest last;
 - boto3: the transfer manager with its defaults (8 MiB parts, ten requests at a time), all files at once;
 - mc: MinIO's own client, `mc cp --recursive` with its defaults;
and back by ours (every file verified) and boto3. Prints medians and ratios. Needs `scripts/bench-setup.sh` and Go, or
mc in the tools' cache; both are made on the first call. Then the seconds of a step that keeps every core busy, with and
without an upload beside it.

With --run: a real `dapo run` with checkpoints to MinIO, and how much longer than its neighbours' median the step after
a checkpoint takes. (The local save is a part of the step before it.)
"""

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from servers.minio import ROOT as KEYS  # noqa: E402
from servers.minio import MinioServer  # noqa: E402
from servers.tools import tool  # noqa: E402

from dapo_core.db import open_reader  # noqa: E402
from dapo_core.objectstore.s3 import open_s3  # noqa: E402
from dapo_core.retention import Retention  # noqa: E402
from dapo_trainer.checkpoints import CheckpointStore  # noqa: E402
from dapo_trainer.uploads import CheckpointUploader  # noqa: E402

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
    def __init__(self, folder: Path, megabytes: int, files: int) -> None:
        self.folder = folder
        self.server = MinioServer()
        self.bucket = self.server.new_bucket()
        self.python = subprocess.check_output([str(ROOT / "scripts" / "bench-setup.sh")], text=True).strip()
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

    def checkpoints(self, run: str) -> CheckpointStore:
        return CheckpointStore(open_s3(self.server.url(self.bucket), self.server.environment), run)

    def empty(self) -> None:
        for found in self.server.client.list_objects(self.bucket, recursive=True):
            self.server.client.remove_object(self.bucket, str(found.object_name))

    # One way up or down each; seconds.

    def ours_up(self) -> float:
        began = time.perf_counter()
        self.checkpoints("ours").commit(1, self.local, attempt=1, spec_digest="d")
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
    """Medians over rounds; who begins changes, and what the server holds is the same for each."""
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


def beside(bench: Bench, steps: int, seconds: float) -> dict[str, float]:
    """Steps that keep every core busy; after every sixth a checkpoint is handed over. The server has a machine of its
    own in truth, so it gives way to the steps here."""
    os.setpriority(os.PRIO_PROCESS, bench.server.process.pid, 19)
    for thread in os.listdir(f"/proc/{bench.server.process.pid}/task"):
        os.setpriority(os.PRIO_PROCESS, int(thread), 19)
    cores = os.cpu_count() or 1
    context = multiprocessing.get_context("spawn")
    begin, ended = context.Barrier(cores + 1), context.Barrier(cores + 1)
    workers = [context.Process(target=burn, args=(begin, ended, seconds), daemon=True) for _ in range(cores)]
    for worker in workers:
        worker.start()
    uploader = CheckpointUploader(bench.checkpoints("beside"), Retention(keep_last=1))
    taken: list[tuple[bool, float]] = []
    for step in range(steps):
        busy = bool(uploader.busy)
        began = time.perf_counter()
        begin.wait()
        ended.wait()
        if step > 2:
            taken.append((busy, time.perf_counter() - began))
        if step % 6 == 5:
            folder = bench.folder / f"global_step_{step}"
            shutil.copytree(bench.local, folder)
            uploader.upload(step, folder, attempt=1, spec_digest="d")
    uploader.close(120)
    for worker in workers:
        worker.kill()
    idle = statistics.median(seconds for busy, seconds in taken if not busy)
    loaded = statistics.median(seconds for busy, seconds in taken if busy)
    return {"step": idle, "step beside an upload": loaded, "ratio": loaded / idle, "failures": uploader.failures}


def run(job: Path, steps: int, every: int) -> dict[str, float]:
    """A real run with checkpoints to MinIO: the step after each against the median of its neighbours."""
    server = MinioServer()
    folder = Path(tempfile.mkdtemp(prefix="dapo-bench-"))
    try:
        url = server.url(server.new_bucket())
        settings = [f"schedule.steps={steps}", f"schedule.checkpointEvery={every}", "schedule.validateEvery=100000"]
        settings += ["schedule.validateBefore=false", "schedule.logSamplesEvery=100000", f"checkpoints.uri={url}"]
        command = [str(Path(sys.executable).with_name("dapo")), "run", str(job), "--plain", "--home", str(folder)]
        for setting in settings:
            command += ["--set", setting]
        subprocess.run(command, env=os.environ | server.environment, check=True)
        reader = open_reader(f"sqlite:///{folder / 'dapo.db'}")
        curve = reader.curve(reader.runs()[0].run_id, "timing_s/step")
        took = {point.step: point.value for point in curve if point.value is not None}
        return after_checkpoints(took, every)
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


def after_checkpoints(took: dict[int, float], every: int) -> dict[str, float]:
    """`took`: seconds by step. The step of a checkpoint has the local save in it and is no neighbour."""
    ratios = []
    for step in range(every, max(took), every):
        near = [took[at] for at in range(step + 2, step + every) if at in took]
        if step + 1 in took and near:
            ratios.append(took[step + 1] / statistics.median(near))
    return {"step after a checkpoint / its neighbours, median": statistics.median(ratios), "checkpoints": len(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--step-seconds", type=float, default=2.0)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--job", type=Path, default=ROOT / "examples" / "arithmetic.yaml")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=8)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    figures: dict[str, float]
    if given.run:
        figures = run(given.job, given.steps, given.every)
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
