"""From `dapo run` to the first finished step: seconds by phase, seconds of processor by process, and memory.

    python benchmarks/start_up.py [JOB.YAML] [--cold] [--set FIELD=VALUE]...

`--cold` empties the page cache first (root only): the first start after a boot. Processor time is that of `dapo run`
and all below it, user and system: it hardly depends on what else the machine does. Memory is the proportional set
(PSS): a page that several processes share counts once, in equal parts. DAPO_FORK_WORKERS=0 shows what forking is worth.
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
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
SAMPLE_SECONDS = 0.2
MEMORY_EVERY = 10  # samples: the kernel walks every page for it
STEPS = 3  # the second one's beginning is the first one's end


@dataclass
class Watch:
    """Observations of one run: when each phase began (seconds from the start), and its processes."""

    began: float
    phases: list[tuple[str, float]] = field(default_factory=list)
    processor: list[tuple[float, float]] = field(default_factory=list)  # (seconds from the start, used by all so far)
    used: dict[int, float] = field(default_factory=dict)  # by process, until the first step was finished
    titles: dict[int, str] = field(default_factory=dict)
    peaks: dict[int, int] = field(default_factory=dict)  # bytes
    most_at_once: int = 0
    first_step_ended: float | None = None
    _samples: int = 0

    def look(self, home: Path, root: psutil.Process) -> None:
        for beat in home.glob("*/attempt-1/heartbeat.json"):
            seen = json.loads(beat.read_text())
            name = f"{seen['phase']} {seen['detail']}".strip()
            if self.first_step_ended is None and seen["step"] > 1:
                self.first_step_ended = seen["ts"] - self.began
            if not self.phases or self.phases[-1][0] != name:
                self.phases.append((name, seen["ts"] - self.began))
        total, memory = 0.0, 0
        self._samples += 1
        for process in [root, *root.children(recursive=True)]:
            try:
                times = process.cpu_times()
                self.titles[process.pid] = _title(process)
                if self._samples % MEMORY_EVERY == 0:
                    size = int(process.memory_full_info().pss)
                    memory += size
                    self.peaks[process.pid] = max(size, self.peaks.get(process.pid, 0))
            except psutil.Error:
                continue
            total += times.user + times.system + times.children_user + times.children_system
            if self.first_step_ended is None:
                self.used[process.pid] = times.user + times.system
        self.processor.append((time.time() - self.began, total))
        self.most_at_once = max(self.most_at_once, memory)


def _title(process: psutil.Process) -> str:
    words: list[str] = " ".join(process.cmdline() or [process.name()]).split()
    for word in words:
        if word.startswith(("ray::", "VLLM::")):
            return word.split(".")[0]
        if word in ("dapo_trainer.main", "dapo_trainer.rewards.sandbox"):
            return word
    named = [word for word in words if word.endswith((".py", "/dapo"))]
    return Path(named[-1] if named else words[0]).name[:40]


def watch(job: Path, home: Path, fields: list[str]) -> Watch:
    command = [str(Path(sys.executable).parent / "dapo"), "run", str(job), "--quiet", "--home", str(home)]
    for text in [f"schedule.steps={STEPS}", "schedule.checkpointEvery=1000", *fields]:
        command += ["--set", text]
    seen = Watch(time.time())
    process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    try:
        while process.poll() is None:
            try:
                seen.look(home, process)
            except (psutil.Error, ValueError, OSError):
                continue
            time.sleep(SAMPLE_SECONDS)
    finally:
        if process.is_running() and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(120)
    return seen


def _by_title(seen: Watch, figures: dict[int, float]) -> list[tuple[str, int, float]]:
    """(title, processes, sum), the largest first."""
    groups: dict[str, list[float]] = defaultdict(list)
    for pid, figure in figures.items():
        groups[seen.titles[pid]].append(figure)
    return sorted(((title, len(of), sum(of)) for title, of in groups.items()), key=lambda row: -row[2])


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
    print(f"processor time until then: {max(used for at, used in seen.processor if at <= ended):.1f} s")
    for title, count, seconds in _by_title(seen, seen.used):
        if seconds >= 0.3:
            print(f"{seconds:8.1f} s  {title}" + (f" (x{count})" if count > 1 else ""))
    print(f"memory: {seen.most_at_once / 2**30:.2f} GiB at most at once")
    for title, count, size in _by_title(seen, {pid: float(size) for pid, size in seen.peaks.items()}):
        if size > 50 << 20:
            print(f"{size / 2**30:8.2f} GiB  {title}" + (f" (x{count})" if count > 1 else ""))


if __name__ == "__main__":
    main()
