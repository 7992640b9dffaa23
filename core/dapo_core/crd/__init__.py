"""The CustomResourceDefinition of DAPOJob, made from the models of `jobspec` and of `run.status`."""
