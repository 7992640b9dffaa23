"""A run in MLflow, found again by a tag; the server is `MLFLOW_TRACKING_URI`, with MLflow's own variables."""

import os
import re
from collections.abc import Mapping
from typing import Any

from dapo_trainer.trackers.mirror import StepRefusedError, TrackedRun

URI_VARIABLE, EXPERIMENT_VARIABLE = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"
RUN_TAG = "dapo.run_id"
DEFAULT_EXPERIMENT = "dapo"
# Unless they are set: one repeat and half a minute, because the mirror repeats by itself. No usage statistics.
_CLIENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")
_OTHER = re.compile(r"[^\w\-. :/]")


def metric_name(name: str) -> str:
    """`name` in the characters that MLflow allows: mean@8 is mean_at_8."""
    return _OTHER.sub("_", name.replace("@", "_at_"))


class MlflowRun:
    """One run of the experiment. Raises MlflowException, and what its HTTP client raises."""

    def __init__(self, run: TrackedRun, first_step: int) -> None:
        for variable, value in _CLIENT.items():
            os.environ.setdefault(variable, value)
        from mlflow.tracking import MlflowClient  # seconds of imports, in the mirror's thread

        self._client: Any = MlflowClient(os.environ[URI_VARIABLE])
        self._run_id = self._existing_or_new(run)

    def log(self, step: int, at: float, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric
        from mlflow.exceptions import MlflowException

        metrics = [Metric(metric_name(name), value, int(at * 1000), step) for name, value in values.items()]
        try:
            self._client.log_batch(self._run_id, metrics)
        except MlflowException as error:
            if error.error_code in _REFUSED:
                raise StepRefusedError(str(error)) from error
            raise

    def close(self, *, done: bool) -> None:
        self._client.set_terminated(self._run_id, "FINISHED" if done else "KILLED")

    def _existing_or_new(self, run: TrackedRun) -> str:
        experiment = self._experiment(os.environ.get(EXPERIMENT_VARIABLE) or DEFAULT_EXPERIMENT)
        found = self._client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{run.run_id}'", max_results=1)
        if found:
            self._client.update_run(found[0].info.run_id, "RUNNING")
            return str(found[0].info.run_id)
        tags = {RUN_TAG: run.run_id, "dapo.name": run.name, "dapo.namespace": run.namespace}
        return str(self._client.create_run(experiment, tags=tags, run_name=run.name).info.run_id)

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found is not None else self._client.create_experiment(name))
