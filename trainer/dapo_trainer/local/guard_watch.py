"""The guards of a job, evaluated after each step of a run on this machine."""

from collections.abc import Sequence

from dapo_core.db import Flag, MetadataReader, split_value
from dapo_core.errors import StoreError
from dapo_core.jobspec import DAPOJobSpec
from dapo_core.run.guards import Alert, evaluate, metrics_of
from dapo_trainer.local.record import StoreRecord
from dapo_trainer.local.run_view import FinishedStep

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
