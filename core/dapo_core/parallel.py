"""A few things at a time, in threads that never hold up the end of the process.

`concurrent.futures` joins its threads when the interpreter ends: one answer that a store never gives would keep a
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
    """`work` of each item, in the items' order, at most `workers` at a time.

    After an exception no further item is begun; it is raised when those in progress have ended.
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
    """From now on this thread and those it starts give way to training where both want one processor: a fiftieth of a
    busy one is theirs, all of an idle one. For good: a thread may not take that back."""
    # Linux knows a thread by a process id.
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
