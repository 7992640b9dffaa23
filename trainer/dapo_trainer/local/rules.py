"""The failure policy and the health rules of core, for one job on this machine."""

from collections.abc import Sequence

from dapo_core.db import Flag, MetadataReader, split_value
from dapo_core.errors import StoreError
from dapo_core.jobspec import DAPOJobSpec
from dapo_core.run.failure_policy import History, decide, failure_of, fruitless
from dapo_core.run.guards import Alert, evaluate, metrics_of
from dapo_trainer.local.ports import Alarm, AlertLog, Ended, Next, NextAction, Step

RETOLD_SECONDS = 60.0
_ACTIONS: dict[str, NextAction] = {"restart": "restart", "ignore": "restart", "suspend": "suspend", "stop": "stop"}


class JobPolicy:
    """`dapo_core.run.failure_policy` for the one process that `dapo run` supervises."""

    def __init__(self, spec: DAPOJobSpec, started_at: float) -> None:
        self._spec = spec
        self._started_at = started_at

    def after(self, attempts: Sequence[Ended], counted: int) -> Next:
        """What follows the last of `attempts`."""
        last = attempts[-1]
        failure = failure_of(self._spec, last.exit_code, last.reason, last.message)
        earlier = [(attempt.step_from, attempt.step_to) for attempt in attempts[:-1]]
        history = History(counted, fruitless(earlier), self._started_at)
        decision = decide(self._spec.run_policy, failure, history, last.ended_at)
        action = _ACTIONS.get(decision.action, "fail")
        return Next(action, decision.counted, decision.delay_seconds, decision.reason, decision.message)


class JobGuard:
    """`dapo_core.run.guards` over the steps of a run, also those before it was resumed."""

    def __init__(self, spec: DAPOJobSpec, log: AlertLog | None = None) -> None:
        self._rules = spec.guards
        self._log = log
        self._open: dict[str, float] = {}  # when the store was last told of it
        self._curves: dict[str, dict[int, tuple[float | None, Flag | None]]] = {m: {} for m in metrics_of(self._rules)}
        self._attempt = 0
        self._holding: set[str] = set()

    def remember(self, reader: MetadataReader, run_id: str) -> None:
        """Start from what the metadata store has of the run; without it, baselines are of the steps from here on."""
        try:
            for metric, curve in self._curves.items():
                curve.update({p.step: (p.value, p.flag) for p in reader.curve(run_id, metric)})
            self._open = {alert.rule: alert.last_seen for alert in reader.alerts([run_id], open_only=True)}
        except StoreError:
            return

    def judge(self, step: Step) -> list[Alarm]:
        """Rules that begin to hold with this step."""
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
        begun = [Alarm(alert.rule, alert.action, alert.message) for alert in alerts if alert.rule not in self._holding]
        self._holding = {alert.rule for alert in alerts}
        if self._log is not None:
            self._note(self._log, alerts, step.at)
        return begun

    def _note(self, log: AlertLog, alerts: Sequence[Alert], now: float) -> None:
        """Tell the store which rules hold, when they begin, now and then while they do, and when they end."""
        for alert in alerts:
            if now - self._open.get(alert.rule, -RETOLD_SECONDS) >= RETOLD_SECONDS:
                self._open[alert.rule] = now
                log.alert_raised(alert, now)
        for rule in [rule for rule in self._open if rule not in self._holding]:
            del self._open[rule]
            log.alert_cleared(rule, now)

    def _forget(self, since: int) -> None:
        """A new attempt does its steps once more; what older ones made of them no longer counts."""
        self._curves = {m: {at: seen for at, seen in curve.items() if at < since} for m, curve in self._curves.items()}
