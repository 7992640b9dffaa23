"""CPU time and memory of the processes of one run."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

MIB = 2**20


@dataclass
class Meter:
    """Reads processes by name; `peak` is the largest resident memory sampled every half second, in bytes."""

    pids: dict[str, int] = field(default_factory=dict)
    peak: dict[str, int] = field(default_factory=dict)
    _spent: dict[str, float] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    def watch(self, name: str, pid: int) -> None:
        """From now on `name` is this process; the time of its predecessor is kept."""
        if name in self.pids:
            self._spent[name] = self.cpu(name)
        self.pids[name] = pid

    def forget(self, name: str) -> None:
        """This process is to end; the time it used no longer counts."""
        self.pids.pop(name, None)
        self._spent.pop(name, None)

    def start(self) -> None:
        """Sample memory in the background."""
        threading.Thread(target=self._sample, daemon=True).start()

    def stop(self) -> None:
        """End sampling."""
        self._stop.set()

    def cpu(self, name: str) -> float:
        """Seconds of processor time, user and system, since it was started."""
        return self._spent.get(name, 0.0) + _cpu(self.pids[name])

    def all_cpu(self) -> dict[str, float]:
        """Of every process."""
        return {name: self.cpu(name) for name in self.pids}

    def memory(self, name: str) -> float:
        """Resident MiB now."""
        return float(psutil.Process(self.pids[name]).memory_info().rss) / MIB

    def _sample(self) -> None:
        while not self._stop.wait(0.5):
            for name, pid in list(self.pids.items()):
                try:
                    self.peak[name] = max(self.peak.get(name, 0), psutil.Process(pid).memory_info().rss)
                except psutil.NoSuchProcess:
                    continue


def _cpu(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def spent(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """CPU seconds between two readings."""
    return {name: after[name] - before.get(name, 0.0) for name in after}


def wait_until(holds: Callable[[], bool], what: str, seconds: float) -> float:
    """Poll until `holds()`. Returns the seconds it took."""
    begun = time.monotonic()
    while not holds():
        if time.monotonic() - begun > seconds:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(0.1)
    return time.monotonic() - begun
