"""`dapo checkpoints`: list, verify, keep, prune, export and sweep what is in the object store."""
