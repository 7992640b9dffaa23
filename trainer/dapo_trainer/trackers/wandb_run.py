"""A run in Weights & Biases, under the run's own id; the account is in wandb's variables, `WANDB_API_KEY` first."""

import os
from collections.abc import Mapping

from dapo_trainer.trackers.mirror import TrackedRun

PROJECT_VARIABLE = "WANDB_PROJECT"
DEFAULT_PROJECT = "dapo"
STEP = "dapo/step"


class WandbRun:
    """One run. Raises wandb.errors.Error."""

    def __init__(self, run: TrackedRun, first_step: int) -> None:
        import wandb  # a second of imports, in the mirror's thread

        run.folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            id=run.run_id,
            name=run.name,
            project=os.environ.get(PROJECT_VARIABLE) or DEFAULT_PROJECT,
            group=run.namespace,
            config=dict(run.spec),
            dir=run.folder,
            resume="allow",
            reinit="finish_previous",
            # The run's own numbers and nothing else: no console, no source code, no usage of this machine.
            settings=wandb.Settings(
                console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True, x_disable_meta=True
            ),
        )
        # wandb's own step only grows, and refuses what a resumed run does again.
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)

    def log(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self._run.log({**values, STEP: step})

    def close(self, *, done: bool) -> None:
        self._run.finish(exit_code=0 if done else 1)
