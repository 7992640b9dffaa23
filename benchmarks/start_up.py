"""From `dapo run` to the first finished step: seconds by phase, seconds of processor by process, and memory.

    python benchmarks/start_up.py [JOB.YAML] [--cold] [--set FIELD=VALUE]...

`--cold` empties the page cache first (root only): the first start after a boot. Processor time is that of `dapo run`
and all below it, user and system: it hardly depends on what else the machine does. Of memory there are three sums: a
page that several processes share counts in each of them (RSS), in equal parts (PSS), or not at all (USS).
DAPO_FORK_WORKERS=0 shows what forking is worth.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil
from process_tree import Memory, ProcessTree

ROOT = Path(__file__).parents[1]
SAMPLE_SECONDS = 0.2
MEMORY_EVERY = 10  # samples: the kernel walks every page for it
STEPS = 3  # the second one's beginning is the first one's end


@dataclass
class Watch:
    """Observations of one run: when each phase began (seconds from the start), and its processes."""

    began: float
    tree: ProcessTree
    phases: list[tuple[str, float]] = field(default_factory=list)
    used: Mapping[int, float] = field(default_factory=dict)  # seconds of processor until the first step was finished
    first_step_ended: float | None = None
    _samples: int = 0

    def look(self, home: Path) -> None:
        """Heartbeats first: the seconds of processor are those of the first look after the step, or a little more."""
        self._samples += 1
        counting = self.first_step_ended is None
        for beat in home.glob("*/attempt-1/heartbeat.json"):
            seen = json.loads(beat.read_text())
            name = f"{seen['phase']} {seen['detail']}".strip()
            if self.first_step_ended is None and seen["step"] > 1:
                self.first_step_ended = seen["ts"] - self.began
            if not self.phases or self.phases[-1][0] != name:
                self.phases.append((name, seen["ts"] - self.began))
        self.tree.look(memory=self._samples % MEMORY_EVERY == 0)
        if counting:
            self.used = dict(self.tree.used)


def watch(job: Path, home: Path, fields: list[str]) -> Watch:
    command = [str(Path(sys.executable).parent / "dapo"), "run", str(job), "--quiet", "--home", str(home)]
    for text in [f"schedule.steps={STEPS}", "schedule.checkpointEvery=1000", *fields]:
        command += ["--set", text]
    began = time.time()
    process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    seen = Watch(began, ProcessTree(process))
    try:
        while process.poll() is None:
            try:
                seen.look(home)
            except (psutil.Error, ValueError, OSError):
                continue
            time.sleep(SAMPLE_SECONDS)
    finally:
        if process.is_running() and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(120)
    return seen


def _by_title(seen: Watch) -> list[tuple[str, int, float, Memory]]:
    """(title, processes, seconds of processor until the first step, memory at most), by seconds."""
    groups: dict[str, list[int]] = defaultdict(list)
    for pid, title in seen.tree.titles.items():
        groups[title].append(pid)
    rows = [
        (
            title,
            len(pids),
            sum(seen.used.get(pid, 0.0) for pid in pids),
            sum((seen.tree.peaks.get(pid, Memory()) for pid in pids), Memory()),
        )
        for title, pids in groups.items()
    ]
    return sorted(rows, key=lambda row: -row[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("job", nargs="?", type=Path, default=ROOT / "examples" / "arithmetic.yaml")
    parser.add_argument("--cold", action="store_true", help="empty the page cache first (root)")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="as of `dapo run`")
    arguments = parser.parse_args()
    if arguments.cold:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
    with tempfile.TemporaryDirectory() as home:
        seen = watch(arguments.job, Path(home), arguments.set)
    ended = seen.first_step_ended
    if ended is None:
        sys.exit(f"No step was finished; the last phase was {seen.phases[-1:]}.")
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"first step finished after {ended:.1f} s ({'cold' if arguments.cold else 'warm'})")
    print(f"{seen.phases[0][1]:8.1f} s  before the trainer's first report")
    for (name, at), (_, end) in pairwise(seen.phases):
        if at < ended:
            print(f"{end - at:8.1f} s  {name}")
    print(f"processor time until then: {sum(seen.used.values()):.1f} s")
    print(f"memory at once, at most: {_gib(seen.tree.peak)} GiB")
    print(f"{'seconds':>8}{'RSS':>7}{'PSS':>7}{'USS':>7}  process (GiB at most of each)")
    for title, count, seconds, memory in _by_title(seen):
        if seconds >= 0.1 or memory.proportional > 20 << 20:
            sizes = "".join(f"{size / 2**30:7.2f}" for size in (memory.resident, memory.proportional, memory.own))
            print(f"{seconds:8.1f}{sizes}  {title}" + (f" (x{count})" if count > 1 else ""))


def _gib(memory: Memory) -> str:
    parts = {"resident (RSS)": memory.resident, "proportional (PSS)": memory.proportional, "own (USS)": memory.own}
    return ", ".join(f"{size / 2**30:.2f} {name}" for name, size in parts.items())


if __name__ == "__main__":
    main()
