"""What a command and everything below it use: seconds of processor and memory, by process."""

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

SAMPLE_SECONDS = 0.5
MEMORY_EVERY = 20  # samples


@dataclass(frozen=True)
class Memory:
    """Bytes. `resident` counts a page that several processes share in each of them, `proportional` (PSS) in equal
    parts, `own` (USS) not at all."""

    resident: int = 0
    proportional: int = 0
    own: int = 0

    def __add__(self, other: "Memory") -> "Memory":
        return Memory(self.resident + other.resident, self.proportional + other.proportional, self.own + other.own)


@dataclass
class ProcessTree:
    """Observations of `root` and its descendants, those that have ended included."""

    root: psutil.Process
    used: dict[int, float] = field(default_factory=dict)  # seconds of processor, user and system, by process
    titles: dict[int, str] = field(default_factory=dict)
    memory: dict[int, Memory] = field(default_factory=dict)  # of the processes there are, when last looked at
    peak: Memory = field(default_factory=Memory)  # the largest sums at once
    peaks: dict[int, Memory] = field(default_factory=dict)  # by process

    def look(self, *, memory: bool = False) -> float:
        """Seconds of processor used so far by all processes seen; `memory` walks every page, which takes a while."""
        self.memory = {}
        for process in self._processes():
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    self.titles[process.pid] = _title(process)
                    self.used[process.pid] = times.user + times.system
                    if memory:
                        seen = process.memory_full_info()
                        self.memory[process.pid] = Memory(seen.rss, seen.pss, seen.uss)
                    else:
                        self.memory[process.pid] = Memory(process.memory_info().rss)
            except psutil.Error:
                continue
        for pid, size in self.memory.items():
            self.peaks[pid] = _larger(size, self.peaks.get(pid, Memory()))
        self.peak = _larger(sum(self.memory.values(), Memory()), self.peak)
        return sum(self.used.values())

    def _processes(self) -> list[psutil.Process]:
        try:
            return [self.root, *self.root.children(recursive=True)]
        except psutil.Error:
            return []


class Watch:
    """Looks at the tree of a command every half second, in a thread, while the `with` block lasts."""

    def __init__(self, root: psutil.Process) -> None:
        self.tree = ProcessTree(root)
        self.series: list[tuple[float, float]] = []  # (time.time(), seconds of processor used so far)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            memory = len(self.series) % MEMORY_EVERY == 0
            self.series.append((time.time(), self.tree.look(memory=memory)))
            self._stop.wait(SAMPLE_SECONDS)

    def used_by(self, moment: float) -> float:
        """Seconds of processor used until `moment` (time.time())."""
        return max((used for at, used in self.series if at <= moment), default=0.0)


def _larger(one: Memory, other: Memory) -> Memory:
    return Memory(
        max(one.resident, other.resident),
        max(one.proportional, other.proportional),
        max(one.own, other.own),
    )


def _title(process: psutil.Process) -> str:
    """What a process is: an actor's class, or the program. A forked one (`fork_server`) has its parent's words."""
    words: list[str] = " ".join(process.cmdline() or [process.name()]).split()
    for word in words:
        if word.startswith(("ray::", "VLLM::")):
            return word.split(".")[0]
    if "dapo_trainer.main" in words:
        name = process.name()
        return "dapo_trainer.main" if name.startswith("python") else name
    if "dapo_trainer.rewards.sandbox" in words:
        return "dapo_trainer.rewards.sandbox"
    named = [word for word in words if word.endswith((".py", "/dapo"))]
    return Path(named[-1] if named else words[0]).name[:40]
