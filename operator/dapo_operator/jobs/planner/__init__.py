"""What to do about one job, from its spec, its status and what is observed. Pure: no clock, no client."""

from dapo_operator.jobs.planner.plan import plan

__all__ = ["plan"]
