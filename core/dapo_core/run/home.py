"""Where the runs of this machine are recorded, and where they keep their objects."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dapo_core.errors import DapoError

# What a trainer and its processes print, in the folder of the attempt.
TRAINER_LOG: Final = "trainer.log"
_ATTEMPT: Final = re.compile(r"^attempt-(\d+)$")


class NoRunsError(DapoError):
    """There is no metadata store where the runs should be."""

    user_mistake = True


@dataclass(frozen=True)
class Home:
    """The folder that holds the runs, `metadata` (a URL) where its own database is not the record, and `store` (a URL)
    where neither DAPO_STORE_URL nor the folder is the object store."""

    path: Path
    metadata: str | None = None
    store: str | None = None

    @classmethod
    def find(cls, home: Path | None = None, metadata: str | None = None, store: str | None = None) -> "Home":
        """The home that options and environment name. The folder is `home`, else DAPO_HOME, else ./runs.

        The record is `metadata`, else the database of `home` if one is named, else DAPO_METADATA_URL, else the
        folder's database.
        """
        named = metadata or (None if home else os.environ.get("DAPO_METADATA_URL")) or None
        return cls((home or Path(os.environ.get("DAPO_HOME") or "runs")).expanduser().resolve(), named, store)

    @property
    def database(self) -> Path:
        """The folder's own SQLite database."""
        return self.path / "dapo.db"

    @property
    def metadata_url(self) -> str:
        """The metadata store, which need not exist yet."""
        return self.metadata or f"sqlite:///{self.database}"

    @property
    def recorded_url(self) -> str:
        """The metadata store, for reading. Raises NoRunsError when the folder has no database."""
        if self.metadata is None and not self.database.is_file():
            raise NoRunsError(f"There are no runs in {self.path}: start one with `dapo run job.yaml`, or name --home.")
        return self.metadata_url

    @property
    def store_url(self) -> str:
        """Where runs keep their objects unless their job names a place."""
        return self.store or os.environ.get("DAPO_STORE_URL") or (self.path / "store").as_uri()


def attempt_folders(run: Path) -> dict[int, Path]:
    """The folders of a local run's attempts so far by number, oldest first."""
    matches = (_ATTEMPT.match(entry.name) for entry in run.iterdir()) if run.is_dir() else iter(())
    return {number: run / f"attempt-{number}" for number in sorted(int(match.group(1)) for match in matches if match)}
