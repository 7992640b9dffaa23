"""Rollout engines as members of a run that come and go: which there are, and what becomes of their requests. Pure."""
