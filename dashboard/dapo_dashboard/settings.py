"""What the dashboard is told by its environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dapo_core.errors import DapoError

METADATA_URL: Final = "DAPO_METADATA_URL"
STORE_URL: Final = "DAPO_STORE_URL"
ACKNOWLEDGE_URL: Final = "DAPO_ACKNOWLEDGE_URL"
ACCESS_FILE: Final = "DAPO_DASHBOARD_ACCESS"
REFRESH_SECONDS: Final = "DAPO_DASHBOARD_REFRESH_SECONDS"
DEMO: Final = "DAPO_DASHBOARD_DEMO"
DEFAULT_REFRESH_SECONDS: Final = 2.0


class SettingsError(DapoError):
    """The environment of the dashboard is wrong."""

    user_mistake = True


@dataclass(frozen=True)
class Settings:
    """`metadata_url` is opened read-only. `acknowledge_url` belongs to the one role that may acknowledge alerts; left
    out, nobody can. `store_url` is where samples lie when a run names no place of its own; `{namespace}` in it is the
    run's. `demo`: the runs that are shown came with the package."""

    metadata_url: str
    store_url: str | None = None
    acknowledge_url: str | None = None
    access_file: Path | None = None
    refresh_seconds: float = DEFAULT_REFRESH_SECONDS
    demo: bool = False

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> "Settings":
        """Raises SettingsError."""
        if not env.get(METADATA_URL):
            raise SettingsError(
                f"{METADATA_URL} is not set: name the metadata store, such as sqlite:////folder/dapo.db, or start the "
                "dashboard with `dapo dashboard`."
            )
        return cls(
            metadata_url=env[METADATA_URL],
            store_url=env.get(STORE_URL) or None,
            acknowledge_url=env.get(ACKNOWLEDGE_URL) or None,
            access_file=Path(env[ACCESS_FILE]) if env.get(ACCESS_FILE) else None,
            refresh_seconds=_seconds(env.get(REFRESH_SECONDS)),
            demo=env.get(DEMO) == "1",
        )


def _seconds(text: str | None) -> float:
    if not text:
        return DEFAULT_REFRESH_SECONDS
    try:
        seconds = float(text)
    except ValueError as error:
        raise SettingsError(f"{REFRESH_SECONDS} is {text!r}, which is no number; write seconds, such as 2.") from error
    if not 0.2 <= seconds <= 3600:
        raise SettingsError(f"{REFRESH_SECONDS} is {text}; write seconds between 0.2 and 3600.")
    return seconds
