"""Reads a job file: YAML as Kubernetes' own tools read it, but strictly, or JSON."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from dapo_core.errors import Problem, SpecError


class _Loader(yaml.SafeLoader):
    """SafeLoader that reads `1e-6` as a number and dates as strings, and rejects duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.MarkedYAMLError(problem=f"duplicate key {key.value}", problem_mark=key.start_mark)
            seen.add(getattr(key, "value", "") if isinstance(key, yaml.ScalarNode) else "")
        return super().construct_mapping(node, deep)


_DATES = "tag:yaml.org,2002:timestamp"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _DATES]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# YAML 1.1 wants a dot in 1e-6; people and Kubernetes' tools do not.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_mapping(path: Path) -> dict[str, Any]:
    """The document of a YAML or JSON file. Raises SpecError if it cannot be read or is not a mapping."""
    document = _read(path)
    if not isinstance(document, dict):
        raise _error(
            path, "is not a DAPOJob: its top level must be a mapping with apiVersion, kind, metadata and spec."
        )
    return document


def _read(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text) if path.suffix == ".json" else yaml.load(text, Loader=_Loader)
    except OSError as error:
        raise _error(path, f"cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise _error(path, f"is not UTF-8 text (byte {error.start}): save it as UTF-8.") from error
    except yaml.MarkedYAMLError as error:
        raise _error(
            path, f"is not valid YAML{_where(error.problem_mark)}: {error.problem or error.context}."
        ) from error
    except RecursionError as error:
        raise _error(path, "is nested too deeply.") from error
    except (yaml.YAMLError, ValueError) as error:
        raise _error(path, f"cannot be read: {str(error).splitlines()[0]}.") from error


def _where(mark: yaml.Mark | None) -> str:
    return f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""


def _error(path: Path, sentence: str) -> SpecError:
    return SpecError([Problem(str(path), f"{path} {sentence}")])
