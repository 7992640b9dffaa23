"""The checkpoint's files arrive while an attempt starts: only what loads them waits for them."""

import threading
from collections.abc import Callable
from typing import Final

from dapo_trainer.checkpoints.restore import Found, Report, Restored

FETCHING: Final = "fetching the checkpoint"


class BackgroundRestore:
    """Restores in a thread of its own, which never delays the exit of the process.

    What `restore` raises before it has found a checkpoint is raised by `begin`; later errors by `check` and `wait`.
    """

    def __init__(self, restore: Callable[[Found, Report], Restored | None], report: Report) -> None:
        """`restore` reports what it waits for; that is passed on to `report` while somebody waits for the files."""
        self._restore, self._report = restore, report
        self._changed = threading.Condition()
        self._waiting = True
        self._said = FETCHING
        self._found: Restored | None = None
        self._result: Restored | None = None
        self._error: BaseException | None = None
        self._ended = False

    @property
    def found(self) -> Restored | None:
        """The checkpoint whose files are being fetched, or have been."""
        return self._found

    def begin(self) -> Restored | None:
        """Start, and wait until a checkpoint is found that fits the job. None: there is none, and nothing to fetch."""
        threading.Thread(target=self._run, name="dapo-restore", daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: self._found is not None or self._ended)
            self._waiting = False
        self.check()
        return self._found

    def check(self) -> None:
        """Raise what has failed by now."""
        if self._error is not None:
            raise self._error

    def wait_for_weights(self) -> Restored | None:
        """Wait until the files that ranks load first have arrived. None: all have, or there is no checkpoint.

        Those of another checkpoint may replace it: `wait` tells.
        """
        with self._changed:
            self._waiting = True
            if not self._ended and not self._has_weights():
                self._report(self._said)
            self._changed.wait_for(lambda: self._ended or self._has_weights())
            return None if self._ended else self._found

    def wait(self) -> Restored | None:
        """Wait until all files have arrived and are verified. The checkpoint may be older than the one found first."""
        with self._changed:
            self._waiting = True
            if not self._ended:
                self._report(self._said)
            self._changed.wait_for(lambda: self._ended)
        self.check()
        return self._result

    def _has_weights(self) -> bool:
        return self._found is not None and self._found.weights is not None

    def _run(self) -> None:
        try:
            self._result = self._restore(self._tell, self._say)
        except BaseException as error:
            self._error = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _tell(self, found: Restored) -> None:
        with self._changed:
            self._found, self._said = found, FETCHING
            self._changed.notify_all()

    def _say(self, sentence: str) -> None:
        with self._changed:
            self._said = sentence
            if self._waiting:
                self._report(sentence)
