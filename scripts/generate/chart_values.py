"""The table of values in charts/dapo/README.md, from the comments of values.yaml."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from sections import with_section

VALUES: Final = Path(__file__).resolve().parents[2] / "charts" / "dapo" / "values.yaml"
BEGIN: Final = "<!-- values: generated from values.yaml by `make generate` -->"
END: Final = "<!-- end of values -->"


def page(old: str) -> str:
    """charts/dapo/README.md with its table as it should be. Raises ValueError when it has no place for the table."""
    return with_section(old, BEGIN, END, table())


def table() -> str:
    """The table as Markdown."""
    text = VALUES.read_text(encoding="utf-8")
    node = yaml.compose(text)
    assert isinstance(node, yaml.MappingNode)
    head = ["| value | default | meaning |", "|---|---|---|"]
    cells = (
        f"| `{name}` | {value} | {meaning.replace('|', chr(92) + '|')} |"
        for name, value, meaning in rows(node, text.splitlines())
    )
    return "\n".join([*head, *cells]) + "\n"


def rows(node: yaml.MappingNode, lines: Sequence[str], path: str = "") -> Iterator[tuple[str, str, str]]:
    """(path, default as JSON, comment) of every value, and of every group of values that has a comment."""
    for key, value in node.value:
        name = f"{path}.{key.value}".lstrip(".")
        text = comment(lines, key.start_mark.line)
        is_group = isinstance(value, yaml.MappingNode) and value.value and not flow_leaf(name)
        if is_group and not text:
            yield from rows(value, lines, name)
        elif is_group:
            yield name, "", text
            yield from rows(value, lines, name)
        else:
            yield name, default(value), text


def flow_leaf(name: str) -> bool:
    """Whether the mapping of this name is one value, not a group of values."""
    return name.endswith(".resources")


def comment(lines: Sequence[str], line: int) -> str:
    """The comment right above a line, on one line; the comment at the top of the file is about the file."""
    parts: list[str] = []
    while line > 0 and (match := re.match(r"\s*# ?(.*)", lines[line - 1])):
        parts.insert(0, match[1])
        line -= 1
    return " ".join(parts) if line > 0 else ""


def default(node: yaml.Node) -> str:
    """The value as JSON in a code span."""
    value: Any = yaml.safe_load(yaml.serialize(node))
    return f"`{json.dumps(value)}`"
