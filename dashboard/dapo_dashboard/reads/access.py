"""Who may see which namespaces. Pure, but for reading the file.

The file is YAML: the claim of the login that lists a person's groups, and the namespaces of each group.

    claim: groups            # default
    groups:
      ml-platform: ["*"]
      team-math: [math, math-eval]
    everyone: [demo]         # namespaces of whoever has logged in
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from dapo_dashboard.settings import SettingsError

ALL: Final = "*"
_FIELDS: Final = {"claim", "groups", "everyone"}


@dataclass(frozen=True)
class Access:
    """Namespaces by group. `Access.open()` lets everybody see all."""

    claim: str = "groups"
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    everyone: Sequence[str] = ()

    @classmethod
    def open(cls) -> "Access":
        return cls(everyone=(ALL,))

    def namespaces(self, user: Mapping[str, Any]) -> frozenset[str] | None:
        """The namespaces that the user may see; None: all of them. Groups that the file does not name give nothing."""
        claimed = user.get(self.claim) or ()
        names = [claimed] if isinstance(claimed, str) else [str(name) for name in claimed]
        seen = {namespace for name in names for namespace in self.groups.get(name, ())} | set(self.everyone)
        return None if ALL in seen else frozenset(seen)


def read_access(path: Path | None) -> Access:
    """The access file. Without one, everybody who can reach the page sees all. Raises SettingsError."""
    if path is None:
        return Access.open()
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise SettingsError(f"The access file {path} can not be read: {error}") from error
    return _parsed(path, content)


def _parsed(path: Path, content: Any) -> Access:
    if not isinstance(content, dict) or not content.keys() <= _FIELDS:
        raise SettingsError(f"The access file {path} may have the fields {', '.join(sorted(_FIELDS))} only.")
    groups = content.get("groups") or {}
    if not isinstance(groups, dict) or not all(_is_names(names) for names in groups.values()):
        raise SettingsError(f"In the access file {path}, groups has to be a list of namespaces for each group.")
    everyone = content.get("everyone") or []
    if not _is_names(everyone):
        raise SettingsError(f"In the access file {path}, everyone has to be a list of namespaces.")
    return Access(str(content.get("claim") or "groups"), groups, tuple(everyone))


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)
