"""The values of a nested YAML tree by their dotted paths."""

from collections.abc import Iterator, Mapping
from typing import Any


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
