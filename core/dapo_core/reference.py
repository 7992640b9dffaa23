"""docs/reference.md: every field of a DAPOJob with type, default and meaning, made from the models."""

from collections.abc import Iterator
from typing import Any, Final

from dapo_core.jobspec.cel import RULES
from dapo_core.jobspec.guards import GUARD_DEFAULTS
from dapo_core.jobspec.job import FROZEN_GROUPS, DAPOJob, DAPOJobSpec
from dapo_core.jobspec.openapi import Schema, default_text, resolved
from dapo_core.jobspec.presets import PRESETS, leaves
from dapo_core.naming import API_VERSION
from dapo_core.run.guards import HEALTH_RULES
from dapo_core.run.status import DAPOJobStatus

_INTRO: Final = f"""# Reference of the DAPOJob

`{API_VERSION}`. Made by `python -m dapo_core.generate --write` from the models in `dapo_core.jobspec`; changes here are
lost. The smallest job names a model and a training file; everything else has a default, most of them the paper's
(arXiv 2503.14476). `dapo plan job.yaml` shows every value and where it comes from.

```yaml
apiVersion: {API_VERSION}
kind: DAPOJob
metadata:
  name: first
spec:
  model: {{source: hf://Qwen/Qwen2.5-0.5B-Instruct}}
  data:
    train: [{{source: train.parquet}}]
```

A field whose default column is empty is off or absent when left out; *required* fields have to be given.
"""


def reference() -> str:
    """The whole page as Markdown."""
    job = DAPOJob.model_json_schema(by_alias=True)
    spec = DAPOJobSpec.model_json_schema(by_alias=True)
    status = DAPOJobStatus.model_json_schema(by_alias=True)
    parts = [
        _INTRO,
        *_groups({**job["$defs"]["Metadata"], "description": job["$defs"]["Metadata"]["description"]}, job, "metadata"),
        *_groups(spec, spec, "spec"),
        _presets(),
        _guards(),
        _rules(),
        *_groups(status, status, "status"),
    ]
    return "\n".join(parts)


def _groups(node: Schema, document: Schema, path: str) -> Iterator[str]:
    """The section of one mapping, then those of the mappings in it."""
    definitions = document.get("$defs", {})
    required = set(node.get("required", ()))
    lines = [
        f"## {path}\n",
        f"{_one_line(node.get('description', ''))}\n",
        "| field | type | default | meaning |",
        "|---|---|---|---|",
    ]
    inner: list[tuple[Schema, str]] = []
    for name, child in node["properties"].items():
        field = resolved(child, definitions)
        lines.append(_row(name, field, f"{path}.{name}", name in required, definitions))
        inner.extend(_inner(field, f"{path}.{name}", definitions))
    yield "\n".join(lines) + "\n"
    for below, below_path in inner:
        yield from _groups(below, document, below_path)


def _inner(field: Schema, path: str, definitions: Schema) -> Iterator[tuple[Schema, str]]:
    if "properties" in field:
        yield field, path
    elif "properties" in (items := resolved(field.get("items", {}), definitions)):
        yield items, f"{path}[]"


def _row(name: str, field: Schema, path: str, required: bool, definitions: Schema) -> str:
    must = required and not field.get("x-filled")
    default = "*required*" if must else _code(default_text(field, path))
    return f"| `{name}` | {_type(field, definitions)} | {default} | {_cell(field.get('description', ''))} |"


def _code(text: str | None) -> str:
    return "" if text is None else text if " with preset" in text else f"`{text}`"


def _type(field: Schema, definitions: Schema) -> str:
    if choices := field.get("enum") or ([field["const"]] if "const" in field else []):
        return " \\| ".join(f"`{choice}`" for choice in choices)
    if field.get("x-kubernetes-int-or-string"):
        return "quantity"
    if field.get("type") == "array":
        return f"list of {_plain(_type(resolved(field.get('items', {}), definitions), definitions))}"
    names = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text"}
    return names.get(field.get("type", ""), "mapping") + _bounds(field)


def _plain(text: str) -> str:
    return {"mapping": "mappings", "text": "text"}.get(text, text)


def _bounds(field: Schema) -> str:
    words = [
        f"{sign} {field[key]:g}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
        if key in field and abs(field[key]) < 10**6
    ]
    return f", {' and '.join(words)}" if words else ""


def _presets() -> str:
    rows = []
    for path in leaves(PRESETS["dapo"], "spec"):
        dapo, grpo = _value("dapo", path), _value("grpo", path)
        rows.append(f"| `{path}` | {dapo} | {grpo if grpo != dapo else 'the same'} |")
    return "\n".join(["## Presets\n", "| field | `dapo` | `grpo` |", "|---|---|---|", *rows]) + "\n"


def _value(preset: str, path: str) -> str:
    value: Any = PRESETS[preset]
    for key in path.split(".")[1:]:
        value = value[key]
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _guards() -> str:
    rows = [
        f"| `{name}` | {rule.meaning} | {d.threshold:g} {d.unit} | {d.for_steps} | `{d.action}` | {rule.remedy} |"
        for name, rule in HEALTH_RULES.items()
        for d in (GUARD_DEFAULTS[name],)
    ]
    head = [
        "## Guards\n",
        "| rule | holds when | default threshold | default forSteps | default action | what to do |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"


def _rules() -> str:
    lines = [f"- {rule.message}" for rules in RULES.values() for rule in rules if "oldSelf" not in rule.rule]
    frozen = ", ".join(f"`{DAPOJobSpec.model_fields[name].alias}`" for name in ("managed_by", *FROZEN_GROUPS))
    return "\n".join(
        [
            "## Rules between fields\n",
            "Refused by the API server at `kubectl apply` and by `dapo plan`, with these sentences:\n",
            *lines,
            "",
            f"While a job exists, {frozen} can't be changed; everything else can, and takes effect at the next attempt "
            "(`suspend`, `guards`, `runPolicy` and `checkpoints` at once).\n",
        ]
    )


def _cell(text: str) -> str:
    return _one_line(text).replace("|", "\\|")


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    print(reference(), end="")
