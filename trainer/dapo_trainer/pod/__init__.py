"""What runs in a pod of a job: `python -m dapo_trainer.pod head|trainer|rollout`.

On CPUs each pod first imports what its processes need: they are forks of its first one. The head starts Ray's head node
and becomes the driver (`dapo_trainer.main`); a trainer or rollout pod fetches the model to its own disk, joins the Ray
cluster and stays until the head is gone. How they end decides what the operator does next.
"""
