"""What every trainer rank loads before it builds the model (`model.external_lib`): our registrations with verl."""

from dapo_trainer.verl_adapter import (
    attention_varlen,
    logit_log_probs,
    packed_storage,
    policy_loss,
    ragged_rows,
    sharded_engine,
    token_log_probs,
)

assert policy_loss and sharded_engine  # imported for their registrations
attention_varlen.register()
token_log_probs.install()
logit_log_probs.install()
packed_storage.install()
ragged_rows.install_in_rank()
