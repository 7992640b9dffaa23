"""A parallel map over daemon threads, which never delay the exit of the process.

`concurrent.futures` joins its threads when the interpreter exits: one request that a store never answers would keep a
trainer from exiting.
"""

import os
import threading
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

_NICE: Final = 19

T = TypeVar("T")
R = TypeVar("R")


def parallel(work: Callable[[T], R], items: Iterable[T], workers: int) -> list[R]:
    """Call `work` on each item, at most `workers` at a time, and return the results in the items' order.

    After an exception no further item is started; it is raised once those in progress have finished.
    """
    waiting = list(enumerate(items))[::-1]
    results: dict[int, R] = {}
    errors: list[BaseException] = []

    def run() -> None:
        # list.pop is atomic.
        while waiting and not errors:
            try:
                number, item = waiting.pop()
            except IndexError:
                return
            try:
                results[number] = work(item)
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=run, name="dapo-parallel", daemon=True) for _ in waiting[:workers]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in sorted(results)]


def give_way() -> None:
    """Lower the CPU priority of this thread and those it starts, for good: beside training they get about 2% of a busy
    core, and all of an idle one."""
    # On Linux, priorities of threads are set like those of processes.
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
