"""What registers itself with verl in every process that builds a model: verl imports it as `model.external_lib`."""

from dapo_trainer.verl_adapter import policy_loss, sharded_engine

__all__ = ["policy_loss", "sharded_engine"]
