"""`--set path=value`: fields of a job file given on the command line. Pure."""

import json
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import yaml

from dapo_core.errors import Problem, SpecError

_TOP = ("apiVersion", "kind", "metadata", "spec")


def with_values(data: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """The job with each `path=value` set. Paths are dotted, `spec.` may be left out, list entries go by number.

    Values are YAML, so `1e-6` and `true` are what they look like. Raises SpecError with every wrong setting.
    """
    result = deepcopy(data)
    problems = []
    for setting in settings:
        try:
            path, value = _split(setting)
            _put(result, path, value)
        except ValueError as error:
            problems.append(Problem("--set", f"--set {setting}: {error}."))
    if problems:
        raise SpecError(problems)
    return result


def _split(setting: str) -> tuple[list[str], Any]:
    path, equals, text = setting.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ValueError("write a dotted field, an equals sign and a value, such as schedule.steps=100")
    return (keys if keys[0] in _TOP else ["spec", *keys]), _value(text)


def _value(text: str) -> Any:
    try:
        return json.loads(text)  # knows 1e-6 for a number, which YAML 1.1 does not
    except ValueError:
        pass
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ValueError("the value is not valid YAML; put text with special characters in quotes") from None


def _put(tree: Any, path: Sequence[str], value: Any) -> None:
    for depth, key in enumerate(path[:-1]):
        tree = _child(tree, key, ".".join(path[: depth + 1]))
    last = path[-1]
    if isinstance(tree, list):
        tree[_index(tree, last, ".".join(path))] = value
    elif isinstance(tree, dict):
        tree[last] = value
    else:
        raise ValueError(f"{'.'.join(path[:-1])} is a single value and has no field {last}")


def _child(tree: Any, key: str, where: str) -> Any:
    if isinstance(tree, list):
        return tree[_index(tree, key, where)]
    if isinstance(tree, dict):
        if tree.get(key) is None:
            tree[key] = {}
        return tree[key]
    raise ValueError(f"{where} goes into a single value")


def _index(entries: list[Any], key: str, where: str) -> int:
    if not key.isdecimal() or int(key) >= len(entries):
        raise ValueError(f"{where} names no entry of a list of {len(entries)}; they are counted from 0")
    return int(key)
