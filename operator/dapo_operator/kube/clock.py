"""Times as Kubernetes writes them, to and from Unix seconds. Pure."""

from datetime import UTC, datetime


def stamp(seconds: float) -> str:
    """`2026-11-21T08:00:00Z`: whole seconds, rounded down, so that what is written reads back as it was."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str | None) -> float | None:
    """Unix seconds of a timestamp, or None where there is none."""
    return None if text is None else datetime.fromisoformat(text).timestamp()


def age(text: str | None, now: float) -> float:
    """Seconds since `text`, never negative: another operator's clock may have been ahead of this one's."""
    at = seconds(text)
    return 0.0 if at is None else max(0.0, now - at)
