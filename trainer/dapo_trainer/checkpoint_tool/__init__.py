"""`dapo checkpoints`: list, verify, prune, export and sweep what is in the object store."""
