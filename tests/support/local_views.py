"""Views that tests of the live view start from."""

from step_metrics import step_metrics

from dapo_trainer.local.run_view import Note, RunView, with_attempt, with_event, with_heartbeat, with_step
from dapo_trainer.process.trainer_process import Heartbeat

NOW = 1_700_000_000.0
NOTES = (
    ("Started", "Attempt 1: process 4312"),
    ("Checkpoint", "step 40 committed, 11.3 MB"),
    ("Killed", "The trainer was killed (exit code 137)."),
    ("EntropyCollapse", "entropy 0.041 nats is below 0.05 for 10 steps"),
)


def empty() -> RunView:
    return RunView("arithmetic-20261121-0412-x7k2", "arithmetic-qwen2", "Separated", NOW - 430, 120, max_restarts=5)


def values(step: int, total: int = 120) -> dict[str, float]:
    """Metrics of one step, with a validation every tenth."""
    metrics = step_metrics(step, total, 4.2)
    validation = {"val-core/addition/acc/mean@8": metrics["dapo/accuracy/generated"] - 0.03}
    return metrics | (validation if step % 10 == 0 else {})


def trained(steps: int, restarts: int = 1) -> RunView:
    """A run after `steps` of its 120 steps, in the update of the next one."""
    view = with_attempt(empty(), 1 + restarts, restarts, NOW - 400)
    for index, (reason, message) in enumerate(NOTES):
        view = with_event(view, Note(NOW - 400 + index, reason, message, warning=index > 1))
    for step in range(1, steps + 1):
        view = with_step(view, 1 + restarts, step, NOW - 4.2 * (steps - step), values(step))
    return with_heartbeat(view, Heartbeat("update", steps + 1, 120, NOW - 3.2, "mini-batch 2 of 4"))
