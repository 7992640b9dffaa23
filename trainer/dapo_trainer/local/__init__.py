"""`dapo run` and `dapo resume`: one process supervises a run on this machine, as the operator does on Kubernetes."""
