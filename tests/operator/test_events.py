"""Events about jobs: what is said again is counted, not said twice."""

import asyncio
from typing import Any

import pytest

from dapo_operator.kube.events import MAX_BYTES, SERIES_SECONDS, EventPoster
from dapo_operator.kube.objects import NotFoundError, ObjectReference, Resource, UnreachableError

JOB = ObjectReference("dapo.io/v1alpha1", "DAPOJob", "team", "first", "uid-1")
OTHER = ObjectReference("dapo.io/v1alpha1", "DAPOJob", "team", "second", "uid-2")


class Kube:
    """Keeps the Events."""

    def __init__(self) -> None:
        self.events: dict[str, Any] = {}
        self.down = False

    async def create(self, _: Resource, body: dict[str, Any]) -> None:
        if self.down:
            raise UnreachableError("no answer")
        self.events[body["metadata"]["name"]] = body

    async def patch(self, _: Resource, namespace: str, name: str, change: dict[str, Any]) -> None:
        if name not in self.events:
            raise NotFoundError("gone", 404)
        assert self.events[name]["metadata"]["namespace"] == namespace
        self.events[name] |= change


class Desk:
    """An operator that says things at certain times."""

    def __init__(self) -> None:
        self.kube, self.now = Kube(), 1_800_000_000.0
        self.poster = EventPoster(self.kube, lambda: self.now, "dapo-operator", "replica-1")  # type: ignore[arg-type]

    def say(self, message: str, about: ObjectReference = JOB, after: float = 1.0, reason: str = "Why") -> None:
        self.now += after
        self.poster.post(about, "Warning", reason, message)

    def posted(self) -> list[tuple[str, int]]:
        """The note of each Event, in the order of their names, and how often it was said."""

        async def post() -> None:
            task = asyncio.create_task(self.poster.run())
            for _ in range(100):  # nothing of the fake ever waits
                await asyncio.sleep(0)
            task.cancel()

        asyncio.run(post())
        events = [event for _, event in sorted(self.kube.events.items())]
        return [(event["message"], event.get("series", {}).get("count", 1)) for event in events]


@pytest.mark.parametrize(
    ("said", "posted"),
    [
        pytest.param([("A.", JOB, 1), ("B.", JOB, 1)], [("A.", 1), ("B.", 1)], id="different"),
        pytest.param([("A.", JOB, 1)] * 3, [("A.", 3)], id="the same"),
        pytest.param(
            [("Attempt 1 of 5.", JOB, 1), ("Attempt 2 of 5.", JOB, 9)],
            [("Attempt 1 of 5.", 1), ("Attempt 2 of 5.", 1)],
            id="a story",
        ),
        pytest.param([("A.", JOB, 1), ("A.", OTHER, 1)], [("A.", 1), ("A.", 1)], id="another object"),
        pytest.param([("A.", JOB, 1), ("A.", JOB, SERIES_SECONDS)], [("A.", 1), ("A.", 1)], id="much later"),
        pytest.param([("A.", JOB, 1), ("B.", JOB, 1), ("A.", JOB, 1)], [("A.", 2), ("B.", 1)], id="in between"),
    ],
)
def test_what_is_said_again_is_counted(
    said: list[tuple[str, ObjectReference, float]], posted: list[tuple[str, int]]
) -> None:
    desk = Desk()
    for message, about, after in said:
        desk.say(message, about, after)
    assert desk.posted() == posted


def test_a_series_has_the_time_of_its_last_event() -> None:
    desk = Desk()
    for _ in range(2):
        desk.say("A.", after=1.25)
    desk.posted()
    [event] = desk.kube.events.values()
    times = (event["eventTime"], event["series"]["lastObservedTime"], event["lastTimestamp"])
    assert times == ("2027-01-15T08:00:01.250000Z", "2027-01-15T08:00:02.500000Z", "2027-01-15T08:00:02Z")
    assert event["count"] == event["series"]["count"] == 2


def test_a_series_that_somebody_deleted_begins_again() -> None:
    desk = Desk()
    desk.say("A.")
    desk.posted()
    desk.kube.events.clear()
    desk.say("A.")
    assert desk.posted() == [("A.", 1)]


def test_an_event_that_was_not_posted_is_no_series() -> None:
    desk = Desk()
    desk.kube.down = True
    desk.say("A.")
    assert desk.posted() == []
    desk.kube.down = False
    desk.say("A.")
    assert desk.posted() == [("A.", 1)]


@pytest.mark.parametrize("character", ["x", "é", "漢"])
def test_long_notes_are_cut_to_what_the_api_server_takes(character: str) -> None:
    desk = Desk()
    desk.say(character * 5000)
    [(note, _)] = desk.posted()
    assert MAX_BYTES - 3 <= len(note.encode()) <= 1024
