"""The values of a nested YAML tree by their dotted paths."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

# A pod template has about fifteen. Whatever walks through a job may recurse.
MAX_LEVELS: Final = 64
_NAMED_LEVELS: Final = 3
# As JSON; a job with three pod templates has about ten kilobytes. The operator keeps several times as much of each job.
MAX_BYTES: Final = 256 * 1024


def leaves(tree: Any, path: str = "", *, into_lists: bool = True) -> Iterator[tuple[str, Any]]:
    """(path, value) of each value of `tree`, such as ("spec.data.train[0].source", "s3://bucket/key").

    Lists of plain values, empty lists and empty mappings are values themselves; an empty tree without a path has none.
    `path` is where the tree itself stands; keys may be dotted already. Without `into_lists` every list is a value.
    """
    if isinstance(tree, Mapping) and (tree or not path):
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key), into_lists=into_lists)
    elif into_lists and isinstance(tree, list | tuple) and any(isinstance(item, Mapping) for item in tree):
        for index, value in enumerate(tree):
            yield from leaves(value, f"{path}[{index}]", into_lists=into_lists)
    else:
        yield path, tree


def size_of(spec: Any) -> int:
    """Bytes of a spec as JSON, which is nested at most MAX_LEVELS levels deep."""
    return len(json.dumps(spec, default=str, skipkeys=True).encode())


def deepest_field(spec: Any) -> str | None:
    """The field of a spec, such as "spec.topology.head.podTemplate", that is nested more than MAX_LEVELS levels deep;
    None when there is none."""
    waiting = [(spec, "spec", 0)]
    while waiting:
        tree, field, level = waiting.pop()
        if level > MAX_LEVELS:
            return field
        if isinstance(tree, Mapping):
            named = level < _NAMED_LEVELS
            waiting += [(value, f"{field}.{key}" if named else field, level + 1) for key, value in tree.items()]
        elif isinstance(tree, list | tuple):
            waiting += [(value, field, level + 1) for value in tree]
    return None
