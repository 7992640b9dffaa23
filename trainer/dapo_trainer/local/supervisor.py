"""The life of a run on one machine: attempt after attempt, by the same failure policy as on Kubernetes."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dapo_core.db import AttemptRow, RunState
from dapo_core.errors import RunBusyError
from dapo_core.jobspec import DAPOJob, DAPOJobSpec
from dapo_core.run.failure_policy import Action, Decision, History, advanced, decide, failure_of, fruitless
from dapo_core.run.formatting import duration, plural, sentence
from dapo_core.run.reasons import ExitCode, Reason
from dapo_trainer.local.attempt import Cause, LocalAttempt
from dapo_trainer.local.display import Presenter
from dapo_trainer.local.record import GuardWatch, StoreRecord
from dapo_trainer.local.run_view import Mood, Note, SpoolFeed
from dapo_trainer.process.processes import send
from dapo_trainer.process.run_folder import AttemptFolder, RunFolder, shown_path
from dapo_trainer.process.signals import StopRequest, become_subreaper
from dapo_trainer.process.temporary_folder import TemporaryFolder, temporary_folder
from dapo_trainer.process.trainer_process import TRAINER, StoreUrls, TrainerProcess, trainer_environment
from dapo_trainer.process.tree import ProcessTree

ENDS: dict[Action, RunState] = {"fail": "Failed", "stop": "Stopped", "suspend": "Suspended"}
MOODS: dict[RunState, Mood] = {"Succeeded": "done", "Failed": "failed", "Stopped": "stopped", "Suspended": "stopped"}
WAIT_SECONDS = 0.1


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended, unless it is resumed. `exit_code` is that of its last attempt."""

    exit_code: int
    mood: Mood
    reason: str
    message: str
    state: RunState


@dataclass
class Supervisor:
    """Works on one run whose lock this process holds."""

    run: RunFolder
    job: DAPOJob
    stores: StoreUrls
    presenter: Presenter
    record: StoreRecord
    guards: GuardWatch
    # Unix seconds; the active deadline counts from here.
    started_at: float
    stop: StopRequest
    command: Sequence[str] = TRAINER
    base_environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    _counted: int = 0
    _started: float = 0.0
    _cause: Cause | None = None
    _step: int | None = None

    def work(self) -> RunOutcome:
        """Blocks until the run is done, has failed or was stopped. Raises RunBusyError, StoreError, OSError."""
        become_subreaper()
        self._started = time.monotonic()
        tree = self._clear_leftovers()
        ended: list[AttemptRow] = []
        number = max((folder.number for folder in self.run.attempts()), default=0)
        while True:
            number += 1
            ended.append(self._attempt(number, tree))
            then = self._after(ended)
            self.record.attempt_ended(ended[-1], then.counted if isinstance(then, Decision) else None)
            if isinstance(then, Decision) and self._restart(ended[-1], then):
                continue
            outcome = self._stopped_waiting(ended[-1]) if isinstance(then, Decision) else then
            return self._close(outcome)

    def _clear_leftovers(self) -> ProcessTree:
        """A supervisor that was killed may have left processes: end them, and deliver what they did not send."""
        tree = ProcessTree.of(self.run)
        left = tree.alive()
        if left:
            what = plural(len(left), "process", "processes")
            self._report(Note(time.time(), "Leftovers", f"Ending {what} of an earlier attempt."))
            self._let_leader_finish(tree)
        if stuck := tree.end():
            ids = ", ".join(str(process.pid) for process in stuck)
            raise RunBusyError(f"Processes {ids} of an earlier attempt of {self.run.run_id} cannot be ended.")
        for folder in self.run.attempts():
            self.record.deliver(folder.spool)
        tree.adopt_orphans()
        return tree

    def _let_leader_finish(self, tree: ProcessTree) -> None:
        """A trainer that outlived its supervisor may be writing a checkpoint: it gets the grace period for that."""
        if (leader := tree.leader) is None or not send(leader, signal.SIGTERM):
            return
        until = time.monotonic() + self.job.spec.run_policy.grace_period_seconds
        while tree.leads() and time.monotonic() < until and not self.stop.asked:
            self.presenter.look(None)
            time.sleep(WAIT_SECONDS)

    def _attempt(self, number: int, tree: ProcessTree) -> AttemptRow:
        folder = self.run.attempt(number)
        with temporary_folder() as temporary:
            ended = self._watched(folder, tree, temporary)
            if _final(ended, self._cause) is None:
                temporary.keep_logs(folder.ray_logs)
        self.record.deliver(folder.spool)
        return ended

    def _watched(self, folder: AttemptFolder, tree: ProcessTree, temporary: TemporaryFolder) -> AttemptRow:
        number = folder.number
        self.record.attempt_started(number, time.time())
        self.record.state("Running", "Started", "")
        self.presenter.attempt(number, self._counted, shown_path(folder.log))
        base = temporary.environment(self.base_environment)
        environment = trainer_environment(self.run, folder, self.stores, base)
        process = TrainerProcess(self.command, environment, folder, inherits=[temporary.lock])
        tree.started(process.pid)
        self._report(Note(time.time(), "Started", f"Attempt {number} is process {process.pid}."))
        attempt = LocalAttempt(
            run_id=self.run.run_id,
            folder=folder,
            process=process,
            tree=tree,
            policy=self.job.spec.run_policy,
            feed=SpoolFeed(folder.spool),
            guards=self.guards,
            presenter=self.presenter,
            stop=self.stop,
            run_started=self._started,
            report=self._report,
        )
        try:
            ended = attempt.watch()
        finally:
            tree.end()
        self._cause, self._step = attempt.cause, attempt.last_step
        return ended

    def _after(self, attempts: Sequence[AttemptRow]) -> RunOutcome | Decision:
        """What follows the last attempt: the end of the run, or another attempt."""
        last = attempts[-1]
        state = _final(last, self._cause)
        if state is not None:
            return _outcome(last, state, last.reason or "", last.message or "")
        then = decision_after(self.job.spec, attempts, self._counted, self.started_at)
        return _outcome(last, ENDS[then.action], then.reason, then.message) if then.action in ENDS else then

    def _restart(self, last: AttemptRow, then: Decision) -> bool:
        """Announce the next attempt and wait out its backoff; False when asked to stop meanwhile."""
        self._counted += then.counted
        limit = self.job.spec.run_policy.max_restarts
        what = f"restart {self._counted} of {limit}" if then.counted else "not counted as a restart"
        soon = f"Next attempt in {duration(then.delay_seconds)}, {what}."
        reason, message = last.reason or "", last.message or ""
        self._report(Note(time.time(), reason, message, warning=True))
        self._report(Note(time.time(), "Restarting", soon))
        self.record.state("Restarting", reason, message)
        self.presenter.mood("waiting", f"{sentence(message)} {soon}")
        until = time.monotonic() + then.delay_seconds
        while time.monotonic() < until and not self.stop.asked:
            self.presenter.look(None)
            time.sleep(WAIT_SECONDS)
        return not self.stop.asked

    def _stopped_waiting(self, last: AttemptRow) -> RunOutcome:
        message = f"Stopped by the user before the next attempt. The last attempt: {last.message}"
        return _outcome(last, "Stopped", Reason.TERMINATED, message)

    def _close(self, outcome: RunOutcome) -> RunOutcome:
        self._report(Note(time.time(), outcome.reason, outcome.message, warning=outcome.mood == "failed"))
        self.record.state(outcome.state, outcome.reason, outcome.message)
        self.presenter.mood(outcome.mood, outcome.message)
        return outcome

    def _report(self, note: Note) -> None:
        self.presenter.note(note)
        self.record.event(note, self.presenter.view.attempt, self._step)


def decision_after(spec: DAPOJobSpec, attempts: Sequence[AttemptRow], counted: int, started_at: float) -> Decision:
    """What follows the last of `attempts` by core's failure policy; `counted` restarts were counted before. Pure."""
    last = attempts[-1]
    failure = failure_of(spec, last.exit_code, last.reason or "", last.message or "")
    steps = [(attempt.step_from, attempt.step_to) for attempt in attempts]
    history = History(counted, fruitless(steps[:-1]), started_at, advanced(steps))
    return decide(spec.run_policy, failure, history, last.ended_at or time.time())


def _outcome(last: AttemptRow, state: RunState, reason: str, message: str) -> RunOutcome:
    assert last.exit_code is not None, "an attempt that was watched has one"
    return RunOutcome(last.exit_code, MOODS[state], reason, message, state)


def _final(last: AttemptRow, cause: Cause | None) -> RunState | None:
    """The state in which the run ends with this attempt; None where the failure policy decides."""
    if last.exit_code == ExitCode.DONE:
        return "Succeeded"
    return "Stopped" if cause is not None and cause.kind == "user" else None
