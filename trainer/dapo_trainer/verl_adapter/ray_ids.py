"""The ids that Ray draws at random, in processes that are copies of one.

Ray's generator is seeded when the first id is drawn and, unlike Python's, does not notice a fork: the copies of a
process that has drawn an id all draw the same ones. Two workers that start at the same time then test their object
store with the same object. One of them crashes, and the driver waits forever for it to register.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def none_drawn() -> Iterator[None]:
    """In this block, `@ray.remote` takes the ids of classes from the kernel, not from Ray's generator."""
    import ray.actor as actors

    before = actors.ActorClassID
    actors.ActorClassID = _ClassIds
    try:
        yield
    finally:
        actors.ActorClassID = before


class _ClassIds:
    """Draws ids of classes as `ray.ActorClassID` does."""

    @staticmethod
    def from_random() -> object:
        from ray import ActorClassID

        return ActorClassID(os.urandom(ActorClassID.size()))


def differ_in_copies() -> bool:
    """Whether two copies of this process, which has one thread, would draw different ids."""
    return _drawn_in_a_copy() != _drawn_in_a_copy()


def _drawn_in_a_copy() -> bytes:
    from ray import JobID, TaskID

    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(send, TaskID.for_fake_task(JobID.from_int(1)).binary())
        finally:
            os._exit(0)
    os.close(send)
    with open(receive, "rb") as answer:
        drawn = answer.read()
    os.waitpid(child, 0)
    return drawn
