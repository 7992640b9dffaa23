"""A few things at a time, in threads that hold nothing up."""

import os
import subprocess
import sys
import threading
import time

import pytest
from patience import patient

from dapo_core.parallel import give_way, parallel


@pytest.mark.parametrize("workers", [1, 2, 9])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_results_are_in_order(count: int, workers: int) -> None:
    def work(item: int) -> int:
        time.sleep((count - item) / 100)
        return item * 2

    assert parallel(work, range(count), workers) == [item * 2 for item in range(count)]


def test_no_more_than_the_workers_at_a_time() -> None:
    most, now, lock, both = [0], [0], threading.Lock(), threading.Barrier(2, timeout=patient(60))

    def work(_item: int) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        both.wait()  # two are at work, however busy the machine is
        with lock:
            now[0] -= 1

    parallel(work, range(8), 2)
    assert most == [2]


def test_an_exception_ends_it() -> None:
    seen: list[int] = []

    def work(item: int) -> None:
        seen.append(item)
        if item == 1:
            raise ValueError("one")

    with pytest.raises(ValueError, match="one"):
        parallel(work, range(50), 1)
    assert seen == [0, 1]


def test_a_thread_that_hangs_does_not_keep_the_process() -> None:
    program = (
        "import threading, time\n"
        "from dapo_core.parallel import parallel\n"
        "threading.Thread(target=lambda: parallel(time.sleep, [600], 1), daemon=True).start()\n"
        "time.sleep(0.2)"
    )
    subprocess.run([sys.executable, "-c", program], timeout=patient(20), check=True)


def test_a_thread_that_gives_way_takes_those_it_starts_with_it_and_nobody_else() -> None:
    def beside() -> list[int]:
        give_way()
        return parallel(lambda _: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), range(2), 2)

    before = os.getpriority(os.PRIO_PROCESS, 0)
    assert parallel(lambda _: beside(), [0], 1) == [[19, 19]]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
