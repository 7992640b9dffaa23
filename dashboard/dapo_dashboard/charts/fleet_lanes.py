"""The pods of a run in time: a lane for each role and index, in which lives follow one another, with what happened to
them. Pure.

Attempts and events say it all: which pods an attempt starts with, when all were ready, when an engine joined, was lost
or drained, and which pod replaced another. Messages name pods as `dapo_core.naming.child_name` makes their names.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from dapo_core.db import AttemptRow, EventRow
from dapo_core.naming import ROLES, Role
from dapo_dashboard.charts import palette
from dapo_dashboard.charts.intervals import event_points

Option = dict[str, Any]
State = Literal["starting", "working", "away"]
# More lanes than these are not drawn; those of the first indices are.
MAX_LANES: Final = 48
COLORS: Final[Mapping[State, str]] = {
    "starting": palette.LOST,
    "working": palette.RIGHT,
    "away": palette.ALERT,
}
SYNCS: Final = "weights sent"
_NEXT: Final = "RolloutReplaced"
_BACK: Final = "RolloutJoined"
_ALL_READY: Final = "PodsReady"
_GONE: Final = frozenset({"RolloutLost", "RolloutDrained", "RolloutDismissed", "RolloutWedged", "RolloutsRemoved"})


@dataclass(frozen=True)
class Span:
    """What a lane was from one moment to another, in Unix seconds."""

    lane: str
    state: State
    begin: float
    end: float


@dataclass(frozen=True)
class Fleet:
    """Lanes from top to bottom, what they were when, and the events that name one of their pods. `hidden` counts lanes
    that are left out."""

    lanes: Sequence[str]
    spans: Sequence[Span]
    marks: Sequence[tuple[str, EventRow]]
    hidden: int = 0


@dataclass(frozen=True)
class _Named:
    """A pod that an event names."""

    role: Role
    attempt: int
    index: int
    life: int


_Told = Sequence[tuple[EventRow, Sequence[_Named]]]


def fleet_of(
    job: str,
    pods: Mapping[Role, int],
    attempts: Sequence[AttemptRow],
    events: Sequence[EventRow],
    now: float,
    sent: Sequence[float] = (),
) -> Fleet:
    """The fleet of a job that starts each attempt with so many pods. Events may be in any order; `now`, and when
    weights were `sent`, are in Unix seconds."""
    name = re.compile(
        rf"(?<![\w-]){re.escape(job)}-(?P<role>{'|'.join(ROLES)})"
        r"-(?P<attempt>\d{1,4})-(?P<index>\d{1,4})(?:-(?P<life>\d{1,6}))?(?![\w-])"
    )
    told = [
        (event, [_named(match) for match in name.finditer(event.message)])
        for event in sorted(events, key=lambda event: event.ts)
    ]
    lanes = {(role, index) for role in ROLES for index in range(min(pods.get(role, 0), MAX_LANES))}
    lanes |= {(pod.role, pod.index) for _, named in told for pod in named}
    kept = sorted(lanes, key=lambda lane: (ROLES.index(lane[0]), lane[1]))[:MAX_LANES]
    spans = list[Span]()
    for row in attempts:
        end = max(row.started_at, row.ended_at if row.ended_at is not None else now)
        own = [each for each in [*told, *_first_sent(row, sent, end)] if row.started_at <= each[0].ts <= end]
        own.sort(key=lambda each: each[0].ts)
        for lane in kept:
            spans += _spans(lane, lane[1] < pods.get(lane[0], 0), row, own, end)
    marks = [(_lane(*lane), event) for event, named in told for lane in kept if any(_is_in(pod, lane) for pod in named)]
    return Fleet([_lane(*lane) for lane in kept], spans, marks, len(lanes) - len(kept))


def _first_sent(row: AttemptRow, sent: Sequence[float], end: float) -> _Told:
    """That all pods of an attempt worked when weights were sent first: on one machine, nothing else says so."""
    first = min((moment for moment in sent if row.started_at <= moment <= end), default=None)
    if first is None:
        return ()
    return ((EventRow(row.run_id, "", first, "Normal", _ALL_READY, "", row.attempt), ()),)


def _named(match: re.Match[str]) -> _Named:
    role = next(role for role in ROLES if role == match["role"])
    return _Named(role, int(match["attempt"]), int(match["index"]), int(match["life"] or 1))


def _is_in(pod: _Named, lane: tuple[Role, int]) -> bool:
    return (pod.role, pod.index) == lane


def _lane(role: Role, index: int) -> str:
    return f"{role}-{index}"


def _spans(lane: tuple[Role, int], from_start: bool, row: AttemptRow, told: _Told, end: float) -> list[Span]:
    """What a lane was during one attempt, of which `told` are the events; `from_start`: it has a pod from the attempt's
    start on."""
    state: State | None = "starting" if from_start else None
    begin, life, spans = row.started_at, 1, list[Span]()
    for event, named in told:
        lives = [pod.life for pod in named if _is_in(pod, lane) and pod.attempt == row.attempt]
        following = _after(event, state, lives, life, event.attempt == row.attempt)
        life = max(life, *lives) if lives else life
        if following != state:
            spans += [Span(_lane(*lane), state, begin, event.ts)] if state is not None else []
            begin, state = event.ts, following
    return [*spans, Span(_lane(*lane), state, begin, end)] if state is not None else spans


def _after(event: EventRow, state: State | None, lives: Sequence[int], life: int, is_of_attempt: bool) -> State | None:
    """What a pod is after an event that names these lives of it; `life` is the newest so far."""
    if event.reason == _ALL_READY and is_of_attempt and state == "starting":
        return "working"
    # The loss of an earlier life is reported after the next one was created.
    if not lives or max(lives) < life:
        return state
    if event.reason == _NEXT:
        return "starting"
    if event.reason == _BACK:
        return "working"
    return "away" if event.reason in _GONE else state


def fleet_height(fleet: Fleet) -> int:
    """Pixels that the chart needs."""
    return 90 + 22 * (len(fleet.lanes) + 1)


def fleet_chart(fleet: Fleet, syncs: Sequence[float]) -> Option:
    """A bar for each span by state, a point for each event at its pod, and one for each of `syncs` (Unix seconds)."""
    rows = [SYNCS, *reversed(fleet.lanes)]
    return {
        "animation": False,
        "legend": {"type": "scroll", "top": 0, "left": 0, "textStyle": {"fontSize": 11.5}},
        "grid": {"left": 92, "right": 20, "top": 34, "bottom": 30, "outerBoundsMode": "none"},
        "tooltip": {"trigger": "item", "confine": True},
        "xAxis": {"type": "time", "axisLabel": {"hideOverlap": True}},
        "yAxis": {"type": "category", "data": rows, "axisTick": {"show": False}},
        "series": [
            *(_bars(state, [span for span in fleet.spans if span.state == state]) for state in COLORS),
            event_points("Normal", fleet.marks, symbol="circle", color=palette.MIXED, size=7, opacity=0.9),
            event_points("Warning", fleet.marks, symbol="diamond", color=palette.WRONG, size=10, opacity=0.9),
            {
                "type": "scatter",
                "name": SYNCS,
                "symbol": "rect",
                "symbolSize": [2, 10],
                "itemStyle": {"color": palette.CHECKPOINT},
                "data": [[moment * 1000, SYNCS] for moment in syncs],
            },
        ],
    }


def _bars(state: State, spans: Sequence[Span]) -> Option:
    color = COLORS[state]
    return {
        "type": "line",
        "name": state,
        # A null ends a line: one series for all bars of a state.
        "data": [
            point for span in spans for point in ([span.begin * 1000, span.lane], [span.end * 1000, span.lane], None)
        ],
        "lineStyle": {"width": 10, "color": color, "cap": "butt"},
        "itemStyle": {"color": color},
        "symbol": "none",
    }
