"""What to do about one job, from what it wants, what it says of itself and what is there. Pure: no clock, no client."""

from dapo_operator.jobs.planner.plan import plan

__all__ = ["plan"]
