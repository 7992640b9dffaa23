"""Curves of several runs over tokens or training time. The same step of two runs lies at two places there, so each
curve is moved to the places of its own run before curves are compared. Pure.

A place is a number of tokens, or milliseconds of training: the sum over the run's steps, each counted once, as the last
attempt ran it. Pauses, queues and restarts are no training: runs are compared by what they cost, not by when a cluster
had room for them."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from math import ceil, floor
from typing import Final

from dapo_core.db import Bucket
from dapo_core.run.metrics import STEP_SECONDS, TOKENS_PROCESSED
from dapo_dashboard.charts.buckets import Curve
from dapo_dashboard.charts.view import Axis, StepClock

MEASURED_BY: Final[Mapping[Axis, str]] = {"time": STEP_SECONDS, "tokens": TOKENS_PROCESSED}
"""The metric whose sum over the steps is a run's place on the axis."""


def running_clock(each_step: Curve, axis: Axis) -> StepClock:
    """Where the steps of a run are on the axis, from what each step took; empty if nothing is known of any."""
    if not each_step:
        return StepClock()
    steps, totals = [float(each_step[0].step_from - 1)], [0.0]
    for bucket in each_step:
        steps.append(float(bucket.step_to))
        totals.append(totals[-1] + (bucket.mean or 0.0) * bucket.count)
    return StepClock(steps, totals, []) if axis == "time" else StepClock(steps, [], totals)


def placed(curve: Curve, clock: StepClock, axis: Axis) -> list[Bucket]:
    """The curve at its run's places on the axis, in ascending order; empty if these are unknown. Buckets keep their
    distance in steps, which distinguishes missing steps from metrics that are not recorded at each step."""
    found: list[Bucket] = []
    for before, bucket in pairwise([None, *curve]):
        place = None if bucket is None else clock.place(bucket.step_to, axis)
        if bucket is None or place is None:
            return []
        end = round(place)
        if before is None or not found:
            found.append(replace(bucket, step_from=end, step_to=end))
        elif end > found[-1].step_to:
            begin = min(end, found[-1].step_to + max(1, bucket.step_from - before.step_to))
            found.append(replace(bucket, step_from=begin, step_to=end))
        else:  # steps that took no time or no tokens: the last of them
            found[-1] = replace(bucket, step_from=found[-1].step_from, step_to=found[-1].step_to)
    return found


def steps_between(window: tuple[int, int] | None, clocks: Iterable[StepClock], axis: Axis) -> tuple[int, int] | None:
    """The steps that any of the runs has in a range of places; None for all."""
    if window is None or axis == "step":
        return window
    ends = [(clock.step_at(window[0], axis), clock.step_at(window[1], axis)) for clock in clocks]
    known = [(start, end) for start, end in ends if start is not None and end is not None]
    if not known:
        return None
    first = max(0, floor(min(start for start, _ in known)))
    return first, max(first + 1, ceil(max(end for _, end in known)))
