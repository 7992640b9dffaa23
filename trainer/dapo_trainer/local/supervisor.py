"""The life of a run on one machine: attempt after attempt, by the same failure policy as on Kubernetes."""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dapo_core.errors import RunBusyError
from dapo_core.jobspec import DAPOJob
from dapo_core.run.entries import RunState
from dapo_core.run.formatting import duration, plural, sentence
from dapo_core.run.reasons import ExitCode
from dapo_trainer.local.attempt import Attempt, Cause
from dapo_trainer.local.board import Board
from dapo_trainer.local.ports import Ended, Feed, Guard, Next, NextAction, Policy, Record
from dapo_trainer.local.view_model import Mood, Note
from dapo_trainer.process.kernel import become_subreaper
from dapo_trainer.process.run_folder import AttemptFolder, RunFolder, shown_path
from dapo_trainer.process.signals import StopRequest
from dapo_trainer.process.table import send
from dapo_trainer.process.trainer_process import TRAINER, Places, TrainerProcess, trainer_environment
from dapo_trainer.process.tree import ProcessTree

ENDS: dict[NextAction, RunState] = {"fail": "Failed", "stop": "Stopped", "suspend": "Suspended"}
MOODS: dict[RunState, Mood] = {"Succeeded": "done", "Failed": "failed", "Stopped": "stopped", "Suspended": "stopped"}
WAIT_SECONDS = 0.1


@dataclass(frozen=True)
class Outcome:
    """How a run ended, for now. `exit_code` is that of its last attempt."""

    exit_code: int
    mood: Mood
    reason: str
    message: str
    state: RunState
    attempts: tuple[Ended, ...] = ()


@dataclass
class Supervisor:
    """Works on one run whose lock this process holds."""

    run: RunFolder
    job: DAPOJob
    places: Places
    board: Board
    record: Record
    policy: Policy
    guard: Guard
    feed: Callable[[AttemptFolder], Feed]
    stop: StopRequest
    command: Sequence[str] = TRAINER
    base_environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    _counted: int = 0
    _started: float = 0.0
    _cause: Cause | None = None
    _step: int | None = None

    def work(self) -> Outcome:
        """Blocks until the run is done, has failed or was stopped. Raises RunBusyError, StoreError, OSError."""
        become_subreaper()
        self._started = time.monotonic()
        tree = self._clear_leftovers()
        ended: list[Ended] = []
        number = max((folder.number for folder in self.run.attempts()), default=0)
        while True:
            number += 1
            ended.append(self._attempt(number, tree))
            then = self._after(ended)
            self.record.attempt_ended(ended[-1], then.counted if isinstance(then, Next) else None)
            if isinstance(then, Next) and self._restart(ended[-1], then):
                continue
            outcome = self._stopped_waiting(ended[-1]) if isinstance(then, Next) else then
            return self._close(replace(outcome, attempts=tuple(ended)))

    def _clear_leftovers(self) -> ProcessTree:
        """An earlier supervisor that was killed may have left processes: they end, and their news are delivered."""
        tree = ProcessTree.of(self.run)
        left = tree.alive()
        if left:
            what = plural(len(left), "process", "processes")
            self._tell(Note(time.time(), "Leftovers", f"Ending {what} of an earlier attempt."))
            self._let_leader_finish(tree)
        if stuck := tree.end():
            ids = ", ".join(str(row.pid) for row in stuck)
            raise RunBusyError(f"Processes {ids} of an earlier attempt of {self.run.run_id} can not be ended.")
        for folder in self.run.attempts():
            self.record.deliver(folder.spool)
        tree.adopt_orphans()
        return tree

    def _let_leader_finish(self, tree: ProcessTree) -> None:
        """A trainer that outlived its supervisor may be writing a checkpoint: it gets the grace period for that."""
        if tree.leader is None or not send(tree.leader, signal.SIGTERM):
            return
        until = time.monotonic() + self.job.spec.run_policy.grace_period_seconds
        while tree.leads() and time.monotonic() < until and not self.stop.asked:
            self.board.look(None)
            time.sleep(WAIT_SECONDS)

    def _attempt(self, number: int, tree: ProcessTree) -> Ended:
        folder = self.run.attempt(number)
        self.record.attempt_started(number, time.time())
        self.record.state("Running", "Started", "")
        self.board.attempt(number, self._counted, shown_path(folder.log))
        environment = trainer_environment(self.run, folder, self.places, self.base_environment)
        process = TrainerProcess(self.command, environment, folder)
        tree.started(process.pid)
        self._tell(Note(time.time(), "Started", f"Attempt {number} is process {process.pid}."))
        attempt = Attempt(
            folder=folder,
            process=process,
            tree=tree,
            policy=self.job.spec.run_policy,
            feed=self.feed(folder),
            guard=self.guard,
            board=self.board,
            stop=self.stop,
            run_started=self._started,
            tell=self._tell,
        )
        try:
            ended = attempt.watch()
        finally:
            tree.end()
        self._cause, self._step = attempt.cause, attempt.last_step
        self.record.deliver(folder.spool)
        return ended

    def _after(self, attempts: Sequence[Ended]) -> Outcome | Next:
        """What follows the last attempt: the end of the run, or another attempt."""
        last = attempts[-1]
        state = _final(last, self._cause)
        if state is not None:
            return Outcome(last.exit_code, MOODS[state], last.reason, last.message, state)
        then = self.policy.after(attempts, self._counted)
        if then.action == "restart":
            return then
        return Outcome(last.exit_code, MOODS[ENDS[then.action]], then.reason, then.message, ENDS[then.action])

    def _restart(self, last: Ended, then: Next) -> bool:
        """Announce the next attempt and wait out its backoff; False when asked to stop meanwhile."""
        self._counted += then.counted
        limit = self.job.spec.run_policy.max_restarts
        what = f"restart {self._counted} of {limit}" if then.counted else "not counted as a restart"
        soon = f"Next attempt in {duration(then.delay_seconds)}, {what}."
        self._tell(Note(time.time(), last.reason, last.message, warning=True))
        self._tell(Note(time.time(), "Restarting", soon))
        self.record.state("Restarting", last.reason, last.message)
        self.board.mood("waiting", f"{sentence(last.message)} {soon}")
        until = time.monotonic() + then.delay_seconds
        while time.monotonic() < until and not self.stop.asked:
            self.board.look(None)
            time.sleep(WAIT_SECONDS)
        return not self.stop.asked

    def _stopped_waiting(self, last: Ended) -> Outcome:
        message = f"Stopped by the user before the next attempt; the last one: {last.message}"
        return Outcome(last.exit_code, "stopped", "Terminated", message, "Stopped")

    def _close(self, outcome: Outcome) -> Outcome:
        self._tell(Note(time.time(), outcome.reason, outcome.message, warning=outcome.mood == "failed"))
        self.record.state(outcome.state, outcome.reason, outcome.message)
        self.board.mood(outcome.mood, outcome.message)
        return outcome

    def _tell(self, note: Note) -> None:
        self.board.note(note)
        self.record.event(note, self.board.view.attempt, self._step)


def _final(last: Ended, cause: Cause | None) -> RunState | None:
    """How the run ended with this attempt, where the failure policy does not decide."""
    if last.exit_code == ExitCode.DONE:
        return "Succeeded"
    return "Stopped" if cause is not None and cause.kind == "user" else None
