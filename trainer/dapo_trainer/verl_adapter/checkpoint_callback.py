"""verl's checkpoint callback: remembers a finished local save until its step's metrics are on record."""

from pathlib import Path
from typing import Any

from verl.trainer.ppo.checkpoint_callback import CheckpointCallback

from dapo_trainer.verl_adapter.session import current


class Committed(CheckpointCallback):
    """Loaded by verl as `trainer.checkpoint_callback_class`.

    verl validates and computes a step's metrics after it saves. A checkpoint committed before that, followed by a
    crash, would resume past a step whose metrics were never written.
    """

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, **_: Any) -> None:
        current().saved(global_step, Path(checkpoint_dir))
