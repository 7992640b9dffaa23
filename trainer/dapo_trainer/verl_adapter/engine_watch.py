"""Ends a training whose rollout engine has died.

Most calls to a dead engine fail by themselves, but not all: a trainer that hands over its weights waits for an answer
that never comes. So somebody waits for each engine's death, and interrupts the driver.
"""

import signal
import threading
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Final

import ray

from dapo_core.errors import DistributedFaultError
from dapo_trainer.verl_adapter.group_router import ServerName

LOOK_SECONDS: Final = 1.0
# An engine's death reaches most calls within this time, with a better message than ours.
HEAD_START_SECONDS: Final = 3.0


class EngineWatch:
    """`with EngineWatch(servers):` raises DistributedFaultError from the block when one of the engines dies in it.

    Used in the main thread: only there can a wait of Ray's be interrupted.
    """

    def __init__(self, servers: Sequence[ServerName]) -> None:
        self._servers = servers
        self._lost: str | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-watch", daemon=True)
        self._before: Any = None

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGUSR2, self._interrupt)
        self._thread.start()

    def __exit__(self, _type: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        signal.signal(signal.SIGUSR2, self._before)
        if isinstance(error, KeyboardInterrupt) and self._lost is not None:
            raise DistributedFaultError(self._lost) from error

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if not self._over.is_set():
            # The one exception that Ray lets through while it waits.
            raise KeyboardInterrupt

    def _run(self) -> None:
        names = {ray.get_actor(server.actor).outlive_engine.remote(): server.actor for server in self._servers}
        while not self._over.is_set():
            died, _ = ray.wait(list(names), timeout=LOOK_SECONDS)
            if died and not self._over.wait(HEAD_START_SECONDS):
                self._lost = _obituary(names[died[0]], died[0])
                self._insist()

    def _insist(self) -> None:
        """Signals until the block has ended: what catches the first one, a retry of verl's say, may wait again."""
        main = threading.main_thread().ident
        assert main is not None
        while not self._over.is_set():
            signal.pthread_kill(main, signal.SIGUSR2)
            self._over.wait(HEAD_START_SECONDS)


def _obituary(name: str, ended: Any) -> str:
    try:
        ray.get(ended)
    except Exception as error:
        return f"The vLLM server {name} is gone: {type(error).__name__}."
    return f"The vLLM engine of {name} died; its last output is in the log of its pod or of the attempt."
