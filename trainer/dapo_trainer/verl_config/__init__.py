"""The job as verl reads it: pure, no verl, torch or Ray imported."""

from dapo_trainer.verl_config.compose import compose
from dapo_trainer.verl_config.overrides import overrides
from dapo_trainer.verl_config.placement import Paths, Placement

__all__ = ["Paths", "Placement", "compose", "overrides"]
