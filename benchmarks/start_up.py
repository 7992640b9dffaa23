"""Seconds from `dapo run` to the first finished step, by phase, and the most memory of each process.

    python benchmarks/start_up.py [JOB.YAML] [--cold]

`--cold` empties the page cache first (root only): the first start after a boot. Memory is the resident set, sampled
five times per second; shared pages count in each process that maps them, so the sum is an upper bound.
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
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
SAMPLE_SECONDS = 0.2
STEPS = 2  # the second one's beginning is the first one's end


@dataclass
class Watch:
    """Observations of one run: when each phase began (seconds from the start), and peaks in bytes by process."""

    began: float
    phases: list[tuple[str, float]] = field(default_factory=list)
    peaks: dict[str, int] = field(default_factory=dict)
    most_at_once: int = 0

    def look(self, home: Path, root: psutil.Process) -> None:
        for beat in home.glob("*/attempt-1/heartbeat.json"):
            seen = json.loads(beat.read_text())
            name = f"{seen['phase']} {seen['detail']}".strip()
            if not self.phases or self.phases[-1][0] != name:
                self.phases.append((name, seen["ts"] - self.began))
        sizes = [(p, p.memory_info().rss) for p in [root, *root.children(recursive=True)] if p.is_running()]
        self.most_at_once = max(self.most_at_once, sum(size for _, size in sizes))
        for process, size in sizes:
            title = _title(process)
            self.peaks[title] = max(size, self.peaks.get(title, 0))


def _title(process: psutil.Process) -> str:
    words: list[str] = process.cmdline() or [process.name()]
    for word in words:
        if word.startswith(("ray::", "VLLM::")):
            return word.split(".")[0]
        if word in ("dapo_trainer.main", "dapo_trainer.rewards.sandbox"):
            return word
    return Path(next((word for word in words if word.endswith((".py", "/dapo"))), words[0])).name[:40]


def watch(job: Path, home: Path) -> Watch:
    command = [str(Path(sys.executable).parent / "dapo"), "run", str(job), "--quiet", "--home", str(home)]
    command += ["--set", f"schedule.steps={STEPS}", "--set", "schedule.checkpointEvery=1000"]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("job", nargs="?", type=Path, default=ROOT / "examples" / "arithmetic.yaml")
    parser.add_argument("--cold", action="store_true", help="empty the page cache first (root)")
    arguments = parser.parse_args()
    if arguments.cold:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
    with tempfile.TemporaryDirectory() as home:
        seen = watch(arguments.job, Path(home))
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    generations = [at for name, at in seen.phases if name == "generate"]
    print(f"first step finished after {generations[1]:.1f} s ({'cold' if arguments.cold else 'warm'})")
    print(f"{seen.phases[0][1]:8.1f} s  before the trainer's first report")
    for (name, at), (_, end) in pairwise(seen.phases):
        if at < generations[1]:
            print(f"{end - at:8.1f} s  {name}")
    print("peak memory")
    for title, size in sorted(seen.peaks.items(), key=lambda item: -item[1]):
        if size > 50 << 20:
            print(f"{size / 2**30:8.2f} GiB  {title}")
    print(f"{seen.most_at_once / 2**30:8.2f} GiB  all at once")


if __name__ == "__main__":
    main()
