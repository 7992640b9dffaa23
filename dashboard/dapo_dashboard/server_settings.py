"""How a server of the dashboard is set up: its environment variables, and the access file, which says who may see which
namespaces. Pure, but for reading the file.

The access file is YAML: the claim of the login that lists a person's groups, and the namespaces of each group.

    claim: groups            # default
    groups:
      ml-platform: ["*"]
      team-math: [math, math-eval]
    everyone: [demo]         # namespaces of everybody who has logged in
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from dapo_core.errors import DapoError

METADATA_URL: Final = "DAPO_METADATA_URL"
STORE_URL: Final = "DAPO_STORE_URL"
ACKNOWLEDGE_URL: Final = "DAPO_ACKNOWLEDGE_URL"
ACCESS_FILE: Final = "DAPO_DASHBOARD_ACCESS"
REFRESH_SECONDS: Final = "DAPO_DASHBOARD_REFRESH_SECONDS"
DEMO: Final = "DAPO_DASHBOARD_DEMO"
DEFAULT_REFRESH_SECONDS: Final = 2.0
ALL_NAMESPACES: Final = "*"
_ACCESS_FIELDS: Final = {"claim", "groups", "everyone"}


class SettingsError(DapoError):
    """The environment of the dashboard, or its access file, is invalid."""

    user_mistake = True


@dataclass(frozen=True)
class DashboardSettings:
    """`metadata_url` is opened read-only. `acknowledge_url` is for the role that may write what viewers say; without
    it, nobody can. `store_url` is the object store of samples for jobs without `checkpoints.uri`; `{namespace}` in it
    is replaced by the run's. `demo`: the runs shown came with the package."""

    metadata_url: str
    store_url: str | None = None
    acknowledge_url: str | None = None
    access_file: Path | None = None
    refresh_seconds: float = DEFAULT_REFRESH_SECONDS
    demo: bool = False

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> "DashboardSettings":
        """Raises SettingsError."""
        if not env.get(METADATA_URL):
            raise SettingsError(
                f"{METADATA_URL} is not set. Set it to the URL of the metadata store, such as "
                "sqlite:////folder/dapo.db, or start the dashboard with `dapo dashboard`."
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
        raise SettingsError(
            f"{REFRESH_SECONDS} is {text!r}, which is not a number. Set it to seconds, such as 2."
        ) from error
    if not 0.2 <= seconds <= 3600:
        raise SettingsError(f"{REFRESH_SECONDS} is {text}. It must be between 0.2 and 3600 seconds.")
    return seconds


@dataclass(frozen=True)
class Access:
    """Namespaces by group. `Access.open()` allows everybody to see all of them."""

    claim: str = "groups"
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    everyone: Sequence[str] = ()

    @classmethod
    def open(cls) -> "Access":
        return cls(everyone=(ALL_NAMESPACES,))

    def namespaces(self, user: Mapping[str, Any]) -> frozenset[str] | None:
        """The namespaces that the user may see; None means all. Groups that the file does not list add none."""
        claimed = verified(user).get(self.claim) or ()
        names = [claimed] if isinstance(claimed, str) else [str(name) for name in claimed]
        seen = {namespace for name in names for namespace in self.groups.get(name, ())} | set(self.everyone)
        return None if ALL_NAMESPACES in seen else frozenset(seen)


def verified(user: Mapping[str, Any]) -> Mapping[str, Any]:
    """The claims of a login without an e-mail address that the provider says it has not verified: people choose that
    themselves, so it is nobody's name and no group."""
    is_verified = str(user.get("email_verified", True)).lower() == "true"
    return user if is_verified else {claim: value for claim, value in user.items() if claim != "email"}


def person(user: Mapping[str, Any]) -> str:
    """By which name a login is shown, such as of who acknowledged an alert."""
    known = verified(user)
    return str(known.get("email") or known.get("preferred_username") or known.get("sub") or "unknown")


def read_access(path: Path | None) -> Access:
    """The access file. Without one, everybody who can reach the server sees all. Raises SettingsError."""
    if path is None:
        return Access.open()
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise SettingsError(f"Cannot read the access file {path}: {error}") from error
    return _parsed(path, content)


def _parsed(path: Path, content: Any) -> Access:
    if not isinstance(content, dict) or not content.keys() <= _ACCESS_FIELDS:
        raise SettingsError(f"The access file {path} may only have the fields {', '.join(sorted(_ACCESS_FIELDS))}.")
    groups = content.get("groups") or {}
    if not isinstance(groups, dict) or not all(_is_names(names) for names in groups.values()):
        raise SettingsError(
            f"In the access file {path}, groups must be a mapping from each group to a list of namespaces."
        )
    everyone = content.get("everyone") or []
    if not _is_names(everyone):
        raise SettingsError(f"In the access file {path}, everyone must be a list of namespaces.")
    return Access(str(content.get("claim") or "groups"), groups, tuple(everyone))


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)
