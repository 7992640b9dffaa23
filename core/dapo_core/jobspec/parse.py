"""From a mapping or a file to a DAPOJob, or to everything that is wrong with it at once."""

from copy import deepcopy
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dapo_core.errors import Problem, SpecError
from dapo_core.jobspec.base import has_scheme
from dapo_core.jobspec.job import DAPOJob, DAPOJobSpec
from dapo_core.jobspec.leaves import MAX_BYTES, MAX_LEVELS, deepest_field, leaves, size_of
from dapo_core.jobspec.losses import LOSSES
from dapo_core.jobspec.presets import PRESETS, chosen_loss, chosen_preset, fill
from dapo_core.jobspec.problems import sentences
from dapo_core.jobspec.rules import check
from dapo_core.jobspec.yaml_file import read_mapping


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
