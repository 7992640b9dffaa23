"""The table of values in charts/dapo/README.md, from the comments of values.yaml: --write it, or --check it."""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[1] / "charts" / "dapo"
BEGIN, END = "<!-- values: made from values.yaml by `make generate` -->", "<!-- end of values -->"


def rows(node: yaml.MappingNode, lines: Sequence[str], path: str = "") -> Iterator[tuple[str, str, str]]:
    """(path, default as JSON, text) of every value that has a comment or is no group of such."""
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
    return name.endswith(".resources")


def comment(lines: Sequence[str], line: int) -> str:
    """The comment right above a line; the first block of the file speaks of the file."""
    found: list[str] = []
    while line > 0 and (match := re.match(r"\s*# ?(.*)", lines[line - 1])):
        found.insert(0, match[1])
        line -= 1
    return " ".join(found) if line > 0 else ""


def default(node: yaml.Node) -> str:
    value: Any = yaml.safe_load(yaml.serialize(node))
    return f"`{json.dumps(value)}`"


def table() -> str:
    text = (CHART / "values.yaml").read_text()
    node = yaml.compose(text)
    assert isinstance(node, yaml.MappingNode)
    head = ["| value | default | what it is |", "|---|---|---|"]
    cells = (
        f"| `{name}` | {value} | {words.replace('|', chr(92) + '|')} |"
        for name, value, words in rows(node, text.splitlines())
    )
    return "\n".join([BEGIN, "", *head, *cells, "", END])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--write", action="store_true")
    group.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    readme = CHART / "README.md"
    before = readme.read_text()
    after = before[: before.index(BEGIN)] + table() + before[before.index(END) + len(END) :]
    if arguments.write:
        readme.write_text(after)
    elif before != after:
        print(f"{readme} is not what values.yaml makes: run `make generate`.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
