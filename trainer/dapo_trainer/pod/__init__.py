"""What runs in a pod of a job: `python -m dapo_trainer.pod head|trainer|rollout`.

The head starts Ray's head and becomes the driver (`dapo_trainer.main`); a trainer or rollout pod brings the model to
its own disk, joins the head's Ray and stays until that is gone. The operator decides what follows from how they end.
"""
