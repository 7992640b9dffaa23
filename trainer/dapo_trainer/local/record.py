"""A run's entries in the metadata store, as its supervisor records them, and its guards, step by step."""

import time
from collections.abc import Sequence
from pathlib import Path

from dapo_core.db import (
    ENDED_STATES,
    AttemptRow,
    EventType,
    Flag,
    MetadataReader,
    MetadataWriter,
    RunState,
    split_value,
)
from dapo_core.db.recorder import Recorder
from dapo_core.errors import StoreError
from dapo_core.jobspec import DAPOJobSpec
from dapo_core.run.entries import (
    AlertCleared,
    AlertRaised,
    AttemptEnded,
    AttemptStarted,
    Entry,
    EventOccurred,
    RunChanged,
)
from dapo_core.run.guards import Alert, evaluate, metrics_of
from dapo_trainer.local.run_view import FinishedStep, Note
from dapo_trainer.spool import drain

# How long a store that is down may hold up a run; the rest is delivered when the run is resumed.
DELIVER_SECONDS = 10.0


class StoreRecord:
    """Writes at once. What the store cannot take is kept and written before the next entry."""

    def __init__(self, writer: MetadataWriter, run_id: str) -> None:
        self._writer, self._run_id = writer, run_id
        self._recorder = Recorder(writer)

    def attempt_started(self, attempt: int, at: float) -> None:
        self._write(AttemptStarted(attempt, at))

    def attempt_ended(self, ended: AttemptRow, counted: bool | None) -> None:
        at, reason, message = ended.ended_at or time.time(), ended.reason or "", ended.message or ""
        self._write(AttemptEnded(ended.attempt, at, reason, message, ended.exit_code, counted))

    def state(self, state: RunState, reason: str, message: str) -> None:
        now = time.time()
        self._write(RunChanged(state, reason, message, now, now if state in ENDED_STATES else None))

    def event(self, note: Note, attempt: int, step: int | None) -> None:
        kind: EventType = "Warning" if note.warning else "Normal"
        self._write(EventOccurred(note.at, kind, note.reason, note.message, attempt or None, step))

    def alert_raised(self, alert: Alert, at: float) -> None:
        self._write(AlertRaised(alert.rule, at, alert.since, alert.message, alert.action))

    def alert_cleared(self, rule: str, at: float) -> None:
        self._write(AlertCleared(rule, at))

    def deliver(self, spool: Path) -> None:
        if spool.is_dir():
            drain(spool, self._writer, self._run_id, DELIVER_SECONDS)

    def _write(self, entry: Entry) -> None:
        self._recorder.add(self._run_id, entry)
        self._recorder.flush()


REFRESH_SECONDS = 60.0


class GuardWatch:
    """`dapo_core.run.guards` over the steps of a run, also those before it was resumed."""

    def __init__(self, spec: DAPOJobSpec, record: StoreRecord | None = None) -> None:
        self._rules = spec.guards
        self._record = record
        self._open: dict[str, float] = {}  # when the store last recorded it
        self._curves: dict[str, dict[int, tuple[float | None, Flag | None]]] = {m: {} for m in metrics_of(self._rules)}
        self._attempt = 0
        self._holding: set[str] = set()

    def remember(self, reader: MetadataReader, run_id: str) -> None:
        """Start from the run's metrics in the metadata store; without it, baselines are of the steps from here on."""
        try:
            for metric, curve in self._curves.items():
                curve.update({p.step: (p.value, p.flag) for p in reader.curve(run_id, metric)})
            self._open = {alert.rule: alert.last_seen for alert in reader.alerts([run_id], open_only=True)}
        except StoreError:
            return

    def judge(self, step: FinishedStep) -> list[Alert]:
        """Alerts that begin with this step; one that goes on is not returned again."""
        if step.attempt > self._attempt:
            self._forget(step.step)
            self._attempt = step.attempt
        for metric, curve in self._curves.items():
            if metric in step.values:
                curve[step.step] = split_value(step.values[metric])
        history = {
            metric: [(at, value, flag) for at, (value, flag) in sorted(curve.items())]
            for metric, curve in self._curves.items()
        }
        alerts = evaluate(self._rules, history)
        begun = [alert for alert in alerts if alert.rule not in self._holding]
        self._holding = {alert.rule for alert in alerts}
        if self._record is not None:
            self._write(self._record, alerts, step.at)
        return begun

    def _write(self, record: StoreRecord, alerts: Sequence[Alert], now: float) -> None:
        """Record which rules hold: when they begin, once a minute while they do, and when they end."""
        for alert in alerts:
            if now - self._open.get(alert.rule, -REFRESH_SECONDS) >= REFRESH_SECONDS:
                self._open[alert.rule] = now
                record.alert_raised(alert, now)
        for rule in [rule for rule in self._open if rule not in self._holding]:
            del self._open[rule]
            record.alert_cleared(rule, now)

    def _forget(self, since: int) -> None:
        """A new attempt repeats steps; the values of older attempts no longer count."""
        self._curves = {m: {at: seen for at, seen in curve.items() if at < since} for m, curve in self._curves.items()}
