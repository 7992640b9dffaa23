"""Pydantic's JSON schema as the structural schema that Kubernetes accepts: without references and unions."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from dapo_core.jobspec.losses import LOSSES
from dapo_core.jobspec.patterns import REMEDIES
from dapo_core.jobspec.presets import PRESETS

Schema = dict[str, Any]

# Keywords that Kubernetes ignores or rejects.
_DROPPED: Final = frozenset({"title", "default", "x-filled", "$defs", "additionalProperties", "const"})
_MISSING: Final = object()


def structural(model: type[BaseModel], root: str) -> Schema:
    """The structural schema of a model; `root` is its dotted path, by which presets' values are looked up."""
    document = model.model_json_schema(by_alias=True)
    return _converted(document, document.get("$defs", {}), root, described=False)


def _converted(node: Schema, definitions: Mapping[str, Schema], path: str, described: bool = True) -> Schema:
    node = resolved(node, definitions)
    result = {key: value for key, value in node.items() if key not in _DROPPED | {"properties", "required", "items"}}
    if described:
        result["description"] = _description(node, path)
    if "const" in node:
        result["enum"] = [node["const"]]
    _convert_bounds(result)
    _convert_pattern(result, path)
    if "properties" in node:
        result |= _object(node, definitions, path)
    if "items" in node:
        result["items"] = _converted(node["items"], definitions, f"{path}[]", described=False)
    if isinstance(values := node.get("additionalProperties"), dict):
        result["additionalProperties"] = _converted(values, definitions, f"{path}{{}}", described=False)
    return result


def _object(node: Schema, definitions: Mapping[str, Schema], path: str) -> Schema:
    properties = {name: _converted(child, definitions, f"{path}.{name}") for name, child in node["properties"].items()}
    required = [name for name in node.get("required", ()) if not is_filled(node["properties"][name])]
    return {"properties": properties, **({"required": required} if required else {})}


def is_filled(child: Schema) -> bool:
    """Whether a field is filled in when the job is read, so that the file may omit it."""
    return bool(child.get("x-filled"))


def resolved(node: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """The node with its reference resolved, and `T | None` as a nullable T."""
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[-1]]
        return resolved({**target, **{key: value for key, value in node.items() if key != "$ref"}}, definitions)
    choices = node.get("anyOf", [])
    if {"type": "null"} not in choices:
        return node
    (inner,) = [choice for choice in choices if choice != {"type": "null"}]
    outer = {key: value for key, value in node.items() if key != "anyOf"}
    return resolved({**inner, "nullable": True, **outer}, definitions)


def _convert_bounds(schema: Schema) -> None:
    """OpenAPI 3.0 has a boolean where JSON schema has a number of its own."""
    for exclusive, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if exclusive in schema:
            schema[inclusive] = schema[exclusive]
            schema[exclusive] = True
    if schema.get("type") == "integer":
        schema["format"] = "int64"


def _convert_pattern(schema: Schema, path: str) -> None:
    """A pattern that has a remedy becomes a CEL rule, so that the API server answers with that and not with a regex."""
    if (pattern := schema.get("pattern")) in REMEDIES:
        del schema["pattern"]
        message = f"{path}: {REMEDIES[pattern]}"
        schema["x-kubernetes-validations"] = [{"rule": f"self.matches(r'{pattern}')", "message": message}]


def _description(node: Schema, path: str) -> str:
    text = node.get("description", "")
    default = default_text(node, path)
    return f"{text} Default: {default}." if default else text


def default_text(node: Schema, path: str) -> str | None:
    """A field's default as text: the presets' values, or the plain one; None where there is none."""
    if is_filled(node):
        return _filled_text(path)
    default = node.get("default")
    return None if default in (None, "", []) or isinstance(default, dict) else yaml_text(default)


def _filled_text(path: str) -> str | None:
    dapo, grpo = (_preset_value(preset, path) for preset in ("dapo", "grpo"))
    by_loss = [
        f"{yaml_text(values[field])} with loss {loss}"
        for loss, values in LOSSES.items()
        for field in values
        if path == f"spec.algorithm.{field}"
    ]
    if isinstance(dapo, dict) or (dapo is _MISSING and not by_loss):
        return None
    if dapo is _MISSING:
        return ", ".join(by_loss)
    plain = yaml_text(dapo) if dapo == grpo else f"{yaml_text(dapo)} with preset dapo, {yaml_text(grpo)} with grpo"
    return "; ".join([plain, ", ".join(by_loss)]) if by_loss else plain


def _preset_value(preset: str, path: str) -> Any:
    value: Any = PRESETS[preset]
    for key in path.split(".")[1:]:
        value = value.get(key, _MISSING) if isinstance(value, dict) else _MISSING
    return value


def yaml_text(value: Any) -> str:
    """A scalar or a list of scalars as one would write it in YAML."""
    if isinstance(value, list):
        return f"[{', '.join(yaml_text(entry) for entry in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
