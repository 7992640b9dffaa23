"""The table of the operator's permissions in docs/install.md, from the file that the chart makes its rules of."""

from pathlib import Path
from typing import Final

import yaml
from sections import with_section

RULES: Final = Path(__file__).resolve().parents[2] / "charts" / "dapo" / "files" / "operator-permissions.yaml"
BEGIN: Final = "<!-- permissions: generated from charts/dapo/files/operator-permissions.yaml by `make generate` -->"
END: Final = "<!-- end of permissions -->"


def page(old: str) -> str:
    """docs/install.md with its table as it should be. Raises ValueError when it has no place for the table."""
    return with_section(old, BEGIN, END, table())


def table() -> str:
    """The table as Markdown."""
    rows = ["| resource | verbs | why |", "|---|---|---|"]
    for rule in yaml.safe_load(RULES.read_text(encoding="utf-8")):
        names = [
            f"`{name}.{group}`" if group else f"`{name}`" for group in rule["apiGroups"] for name in rule["resources"]
        ]
        only = f" (with `{rule['scheduler']}` in `operator.gangSchedulers`)" if "scheduler" in rule else ""
        rows.append(f"| {', '.join(names)} | {', '.join(rule['verbs'])} | {rule['why']}{only} |")
    return "\n".join(rows) + "\n"
