"""Pydantic's errors as sentences: field, value, remedy."""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dapo_core.errors import Problem
from dapo_core.jobspec.patterns import REMEDIES

_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a string",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping of fields",
    "model_attributes_type": "a mapping of fields",
    "finite_number": "a finite number",
    "int_parsing_size": "an integer of at most 4,300 digits",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


def sentences(error: ValidationError, model: type[BaseModel], root: str = "") -> list[Problem]:
    """All errors of one validation. `model` is the type of what was validated and `root` its path."""
    return [_problem(details, model, root) for details in error.errors(include_url=False) if not _echo(details)]


def _echo(details: ErrorDetails) -> bool:
    """Whether a list is too short only because its entries, which are reported one by one, are invalid."""
    return details["type"] == "too_short" and bool(details["input"])


def path_of(location: Sequence[int | str], root: str = "") -> str:
    """`("data", "train", 0, "source")` under `spec` as `spec.data.train[0].source`."""
    path = root
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def _problem(details: ErrorDetails, model: type[BaseModel], root: str) -> Problem:
    field = path_of(details["loc"], root)
    return Problem(field, f"{field} {_sentence(details, model, root)}")


def _sentence(details: ErrorDetails, model: type[BaseModel], root: str) -> str:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "missing":
        return f"is missing: {_description(model, details['loc'])}"
    if kind == "extra_forbidden":
        return _unknown(details["loc"], model, root)
    if kind == "literal_error":
        return _not_one_of(value, str(context["expected"]))
    if kind == "invalid_key":
        return "is a key that is not a string: put it in quotes or remove it."
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"is {shown(value)} but must be {words} {context[key]}."
    if kind in _EXPECTED:
        return f"is {shown(value)}{_kind(value)} but must be {_EXPECTED[kind]}{_hint(kind, value)}."
    if kind == "value_error":
        return f"is {shown(value)}: {context['error']}."
    return f"is {shown(value)}: {_limits(kind, context)}."


def _limits(kind: str, context: Mapping[str, Any]) -> str:
    match kind:
        case "string_too_long" | "too_long":
            return f"keep it to at most {context['max_length']} {'characters' if 'string' in kind else 'entries'}"
        case "string_too_short" | "too_short":
            return "it must not be empty" if context["min_length"] == 1 else f"at least {context['min_length']} entries"
        case "string_pattern_mismatch":
            return REMEDIES.get(context["pattern"], f"it must match {context['pattern']}")
        case _:
            return f"it cannot be used here ({kind.replace('_', ' ')})"


def _not_one_of(value: object, expected: str) -> str:
    choices = re.findall(r"'([^']*)'", expected)
    near = nearest(str(value), choices) if len(choices) > 1 else None
    remedy = f": did you mean {near}?" if near else "."
    return (
        f"is {shown(value)} but must be {choices[0] if len(choices) == 1 else 'one of ' + ', '.join(choices)}{remedy}"
    )


def _unknown(location: Sequence[int | str], model: type[BaseModel], root: str) -> str:
    parent, name = location[:-1], str(location[-1])
    known = field_names(model, parent)
    near = nearest(name, known)
    remedy = f"did you mean {near}?" if near else f"the fields here are {', '.join(known)}."
    return f"is not a field of {path_of(parent, root) or 'a DAPOJob'}: {remedy}"


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name most similar to `name`, whatever its case, or None when none is similar."""
    by_lower = {other.lower().replace("_", ""): other for other in known}
    matches = difflib.get_close_matches(name.lower().replace("_", "").replace("-", ""), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def field_names(model: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    """The YAML names of the fields of the model at `location` under `model`."""
    owner = _model_at(model, location)
    return [] if owner is None else [field.alias or name for name, field in owner.model_fields.items()]


def _model_at(model: type[BaseModel], location: Sequence[int | str]) -> type[BaseModel] | None:
    here: type[BaseModel] | None = model
    for part in location:
        if isinstance(part, int) or here is None:
            continue
        annotation = next((f.annotation for n, f in here.model_fields.items() if (f.alias or n) == part), None)
        here = model_in(annotation)
    return here


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The model inside an annotation such as `Lora | None` or `tuple[TrainData, ...]`, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    arguments = getattr(annotation, "__args__", ())
    return next((model for argument in arguments if (model := model_in(argument))), None)


def _description(model: type[BaseModel], location: Sequence[int | str]) -> str:
    parent = _model_at(model, location[:-1])
    fields = parent.model_fields.items() if parent else ()
    text = next((f.description for n, f in fields if (f.alias or n) == location[-1]), None) or "it is required."
    # A sentence ends at a full stop followed by a space; `file:///a.b` has none.
    return text.split(". ")[0].rstrip(".") + "."


def _hint(kind: str, value: object) -> str:
    if kind == "string_type" and isinstance(value, int | float):
        return ": put it in quotes"
    if kind in ("model_type", "model_attributes_type") and isinstance(value, str):
        return f", such as `source: {value}`" if "/" in value else ""
    unquoted = {"int_type": r"[-+]?\d+", "float_type": r"[-+]?[\d.]+([eE][-+]?\d+)?", "bool_type": "true|false"}
    if isinstance(value, str) and re.fullmatch(unquoted.get(kind, "(?!)"), value):
        return ": write it without quotes"
    return ""


def shown(value: object) -> str:
    """A value as the user wrote it, shortened to 80 characters."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = f'"{value}"' if isinstance(value, str) else _plain(value)
    return text if len(text) <= 80 else f"{text[:76]}...{text[-1]}"


def _plain(value: object) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"<{type(error).__name__}>"


def _kind(value: object) -> str:
    """What a YAML value is, in parentheses; nothing for null, which says so itself."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return " (a mapping)"
    if isinstance(value, list | tuple):
        return " (a list)"
    names: dict[type, str] = {bool: "a boolean", int: "an integer", float: "a number", str: "a string"}
    return f" ({names.get(type(value), type(value).__name__)})"
