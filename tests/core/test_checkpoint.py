"""Which checkpoint a run goes on from, and which are kept."""

from dataclasses import dataclass

import pytest

from dapo_core.run.checkpoint import Retention, judge, newest_committed


@dataclass(frozen=True)
class Found:
    step: int
    state: str
    attempt: int = 1


PICKS: dict[str, tuple[list[Found], Found | None]] = {
    "none": ([], None),
    "only torn ones": ([Found(5, "uploading"), Found(10, "deleting"), Found(15, "failed")], None),
    "the newest committed": (
        [Found(5, "committed"), Found(15, "uploading"), Found(10, "committed")],
        Found(10, "committed"),
    ),
    "of one step the later attempt's": (
        [Found(5, "committed", 2), Found(5, "committed", 1)],
        Found(5, "committed", 2),
    ),
}


@pytest.mark.parametrize(("found", "expected"), PICKS.values(), ids=PICKS.keys())
def test_picking(found: list[Found], expected: Found | None) -> None:
    assert newest_committed(found) == expected


STEPS = {5: {"val": 0.9}, 10: {"val": 0.2}, 15: {}, 20: {"val": float("nan")}, 25: {"val": 0.9}, 30: {"val": 0.1}}
KEPT: dict[str, tuple[Retention, list[int]]] = {
    "the newest": (Retention(keep_last=2), [30, 25]),
    "never none": (Retention(keep_last=0), [30]),
    "the best besides": (Retention(keep_last=1, keep_best=1, best_metric="val"), [30, 25]),
    "of two as good the later one comes first": (Retention(1, 2, "val"), [30, 25, 5]),
    "more than there are": (Retention(keep_last=99), [30, 25, 20, 15, 10, 5]),
    "unmeasured and NaN are not the best": (Retention(1, 99, "val"), [30, 25, 10, 5]),
    "the best by a metric that is not there": (Retention(1, 2, "other"), [30]),
    "the best by no metric": (Retention(1, 2), [30]),
}


@pytest.mark.parametrize(("retention", "kept"), KEPT.values(), ids=KEPT.keys())
def test_keeping(retention: Retention, kept: list[int]) -> None:
    verdicts = judge(retention, STEPS)
    assert [verdict.step for verdict in verdicts if verdict.keep] == kept
    assert len(verdicts) == len(STEPS) and all(verdict.why.endswith(".") for verdict in verdicts)
