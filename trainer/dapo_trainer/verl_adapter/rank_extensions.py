"""What every trainer rank loads before it builds the model (`model.external_lib`): our registrations with verl, and its
heartbeat."""

import os

from dapo_trainer.process.liveness import beat, heartbeats_of
from dapo_trainer.verl_adapter import (
    attention_varlen,
    cpu_linear,
    packed_rows,
    policy_loss,
    ragged_rows,
    sharded_engine,
    token_log_probs,
)

assert policy_loss and sharded_engine  # imported for their registrations
attention_varlen.register()
cpu_linear.install()
token_log_probs.install()
token_log_probs.install_for_logits()
packed_rows.install()
ragged_rows.install_in_rank()
if (heartbeats := heartbeats_of(os.environ)) is not None:
    beat(heartbeats)
