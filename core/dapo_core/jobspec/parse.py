"""From a mapping or a file to a DAPOJob, or to everything that is wrong with it at once.

Files are read as Kubernetes' own tools read YAML, but strictly, or as JSON."""

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from dapo_core.errors import Problem, SpecError
from dapo_core.jobspec.base import has_scheme
from dapo_core.jobspec.job import DAPOJob, DAPOJobSpec
from dapo_core.jobspec.leaves import MAX_BYTES, MAX_LEVELS, deepest_field, leaves, size_of
from dapo_core.jobspec.losses import LOSSES
from dapo_core.jobspec.presets import PRESETS, chosen_loss, chosen_preset, fill
from dapo_core.jobspec.problems import sentences
from dapo_core.jobspec.rules import check


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


def load_job(path: Path) -> DAPOJob:
    """The job of a YAML or JSON file. Plain paths in it are relative to its folder. Raises SpecError."""
    return parse_job(absolute_paths(read_mapping(path), path.resolve().parent))


def parse_job(data: Any) -> DAPOJob:
    """The job of a mapping as YAML gives it, or as the API server does (with status).

    Raises SpecError with everything that is wrong: outside the spec, in its fields in their order, then between them. A
    valid job is validated once; what is wrong with an invalid one is worked out afterwards.
    """
    if not isinstance(data, dict):
        raise SpecError([Problem("", "A DAPOJob must be a mapping with apiVersion, kind, metadata and spec.")])
    if (deep := deepest_field(data.get("spec"))) is not None:
        raise SpecError([Problem(deep, f"{deep} is nested more than {MAX_LEVELS} levels deep; reduce its nesting.")])
    if (size := size_of(data.get("spec"))) > MAX_BYTES:
        text = f"spec has {size:,} bytes as JSON, and may have {MAX_BYTES:,}: shorten its podTemplates and lists."
        raise SpecError([Problem("spec", text)])
    try:
        return DAPOJob.model_validate({key: value for key, value in data.items() if key != "status"})
    except ValidationError as error:
        raise SpecError(_diagnosis(data.get("spec"), error)) from None


def field_sources(data: dict[str, Any]) -> dict[str, str]:
    """Where each value of a valid job comes from: dotted field -> "file", "loss gspo" (or another), "preset dapo" (or
    grpo) or "default"."""
    spec = data.get("spec")
    dumped = parse_job(data).model_dump(by_alias=True, mode="json")["spec"]
    in_file = dict(leaves(spec, "spec"))
    tree = spec if isinstance(spec, dict) else {}
    preset, loss = chosen_preset(tree), chosen_loss(tree)
    # The first that has a value: a loss comes over the preset.
    origins = {
        "file": in_file,
        f"loss {loss}": {f"spec.algorithm.{field}" for field in LOSSES[loss]},
        f"preset {preset}": dict(leaves(PRESETS[preset], "spec")),
    }
    return {
        path: next((origin for origin, paths in origins.items() if path in paths), "default")
        for path, _ in leaves(dumped, "spec")
    }


def _diagnosis(spec: Any, error: ValidationError) -> list[Problem]:
    fields = sentences(error, DAPOJob)
    if not isinstance(spec, dict):
        return fields
    between = check(_valid_groups(fill(spec)))
    # A finding about the whole spec repeats what the rules say, each under its own field.
    fields = [problem for problem in fields if problem.field != "spec" or not between]
    return [*sorted(fields, key=lambda problem: problem.field.startswith("spec")), *between]


def _valid_groups(filled: dict[str, Any]) -> dict[str, Any]:
    """Those groups that are valid in themselves, by Python name, so that rules between them can be checked."""
    valid = {}
    for name, field in DAPOJobSpec.model_fields.items():
        try:
            value = filled.get(field.alias or name, field.get_default(call_default_factory=True))
            valid[name] = TypeAdapter(field.rebuild_annotation()).validate_python(value)
        except ValidationError:
            continue
    return valid


def absolute_paths(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The job with its plain paths as file:/// URIs, relative ones taken from `folder`, and reward files as absolute
    paths. Wrong types are left alone."""
    result = deepcopy(data)
    spec = result.get("spec")
    if not isinstance(spec, dict):
        return result
    inputs = spec.get("data") if isinstance(spec.get("data"), dict) else {}
    holders = [spec.get("model"), *_list(inputs, "train"), *_list(inputs, "validation")]
    for holder, key in [*((holder, "source") for holder in holders), (spec.get("checkpoints"), "uri")]:
        if isinstance(holder, dict) and isinstance(holder.get(key), str) and _is_path(holder[key]):
            holder[key] = (folder / Path(holder[key]).expanduser()).resolve().as_uri()
    reward = spec.get("reward") if isinstance(spec.get("reward"), dict) else {}
    for holder in [reward, *_list(reward, "additional")]:
        if isinstance(holder, dict) and isinstance(holder.get("file"), str) and _is_path(holder["file"]):
            holder["file"] = str((folder / Path(holder["file"]).expanduser()).resolve())
    return result


def _list(tree: Any, key: str) -> list[Any]:
    value = tree.get(key) if isinstance(tree, dict) else None
    return value if isinstance(value, list) else []


def _is_path(text: str) -> bool:
    return bool(text) and not has_scheme(text) and "\0" not in text
