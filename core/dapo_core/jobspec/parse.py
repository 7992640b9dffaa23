"""From a mapping or a file to a DAPOJob, with everything wrong with it said at once."""

from copy import deepcopy
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dapo_core.errors import Problem, SpecError
from dapo_core.jobspec.base import has_scheme
from dapo_core.jobspec.job import DAPOJob, DAPOJobSpec
from dapo_core.jobspec.presets import PRESETS, chosen_preset, fill, leaves
from dapo_core.jobspec.problems import path_of, sentences
from dapo_core.jobspec.rules import check
from dapo_core.jobspec.yaml_file import read_mapping


def load_job(path: Path) -> DAPOJob:
    """The job of a YAML or JSON file. Plain paths in it are relative to its folder. Raises SpecError."""
    return parse_job(absolute_paths(read_mapping(path), path.resolve().parent))


def parse_job(data: dict[str, Any]) -> DAPOJob:
    """The job of a mapping as YAML gives it, or as the API server does (with status). Raises SpecError."""
    problems = find_problems(data)
    if problems:
        raise SpecError(problems)
    return DAPOJob.model_validate(_without_status(data))


def find_problems(data: Any) -> list[Problem]:
    """Everything wrong with a job, in the order of its fields."""
    if not isinstance(data, dict):
        return [Problem("", "A DAPOJob must be a mapping with apiVersion, kind, metadata and spec.")]
    return [*_envelope(_without_status(data)), *_spec(data.get("spec"))]


def field_sources(data: dict[str, Any]) -> dict[str, str]:
    """Where each value of a valid job comes from: dotted field -> "file", "preset dapo" (or grpo) or "default"."""
    given = data.get("spec")
    dumped = parse_job(data).model_dump(by_alias=True, mode="json")["spec"]
    in_file = set(leaves(given, "spec"))
    preset = chosen_preset(given if isinstance(given, dict) else {})
    in_preset = set(leaves(PRESETS[preset], "spec"))
    return {leaf: _source(leaf, in_file, in_preset, preset) for leaf in leaves(dumped, "spec")}


def _source(leaf: str, in_file: set[str], in_preset: set[str], preset: str) -> str:
    if leaf in in_file:
        return "file"
    return f"preset {preset}" if leaf in in_preset else "default"


def _without_status(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key != "status"}


def _envelope(data: dict[str, Any]) -> list[Problem]:
    """Problems outside the spec, whose fields are looked at group by group."""
    try:
        DAPOJob.model_validate(data)
    except ValidationError as error:
        outside = [d for d in error.errors() if not d["loc"] or d["loc"][0] != "spec" or d["type"] == "missing"]
        places = {path_of(details["loc"]) for details in outside}
        return [p for p in sentences(error, DAPOJob) if p.field in places and not p.field.startswith("spec.")]
    return []


def _spec(data: Any) -> list[Problem]:
    if data is None:
        return []
    if not isinstance(data, dict):
        return _field_problems(data)
    return [*_field_problems(data), *check(_sound_groups(fill(data)))]


def _field_problems(data: Any) -> list[Problem]:
    try:
        DAPOJobSpec.model_validate(data)
    except ValidationError as error:
        # The whole-spec finding is the rules' own, which are told one by one instead.
        return [p for p in sentences(error, DAPOJobSpec, "spec") if p.field != "spec" or not isinstance(data, dict)]
    return []


def _sound_groups(filled: dict[str, Any]) -> dict[str, Any]:
    """Those groups that are right in themselves, by Python name, so that rules between them can be checked."""
    sound = {}
    for name, field in DAPOJobSpec.model_fields.items():
        try:
            value = filled.get(field.alias or name, field.get_default(call_default_factory=True))
            sound[name] = TypeAdapter(field.rebuild_annotation()).validate_python(value)
        except ValidationError:
            continue
    return sound


def absolute_paths(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The job with its plain paths as file:/// URIs, relative ones taken from `folder`. Wrong types are left alone."""
    result = deepcopy(data)
    spec = result.get("spec")
    if not isinstance(spec, dict):
        return result
    inputs = spec.get("data") if isinstance(spec.get("data"), dict) else {}
    holders = [spec.get("model"), *_list(inputs, "train"), *_list(inputs, "validation")]
    for holder, key in [*((holder, "source") for holder in holders), (spec.get("checkpoints"), "uri")]:
        if isinstance(holder, dict) and isinstance(holder.get(key), str) and _is_path(holder[key]):
            holder[key] = (folder / Path(holder[key]).expanduser()).resolve().as_uri()
    return result


def _list(tree: Any, key: str) -> list[Any]:
    value = tree.get(key) if isinstance(tree, dict) else None
    return value if isinstance(value, list) else []


def _is_path(text: str) -> bool:
    return bool(text) and not has_scheme(text) and "\0" not in text
