"""What all groups of the job file share: strict frozen models, and the types that several groups use."""

import re
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from dapo_core.jobspec import patterns

T = TypeVar("T")


class SpecModel(BaseModel):
    """A group of fields: camelCase in YAML, snake_case in Python, unknown fields rejected, values never coerced."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, alias_generator=to_camel, validate_default=True
    )


# A YAML list, stored as a tuple so that a job is immutable.
Items = Annotated[tuple[T, ...], Field(strict=False)]


def filled(description: str, **limits: Any) -> Any:
    """A field that `presets.fill` sets when the file does not: required here, optional in the file."""
    return Field(description=description, json_schema_extra={"x-filled": True}, **limits)


URI_SCHEMES = ("hf", "s3", "file", "pvc")
_HAS_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):")


def has_scheme(text: str) -> bool:
    """Whether `text` is a URI; otherwise it is a plain path."""
    return _HAS_SCHEME.match(text) is not None


def _known_uri(text: str) -> str:
    if re.match(patterns.URI.regex, text):
        return text
    scheme = _HAS_SCHEME.match(text)
    if scheme is None:
        raise ValueError("plain paths work only with `dapo run` and `dapo plan`; use hf://, s3://, file:/// or pvc://")
    if scheme.group(1) not in URI_SCHEMES:
        raise ValueError(f"the scheme {scheme.group(1)}: is not supported; use hf://, s3://, file:/// or pvc://")
    raise ValueError("use hf://owner/name, s3://bucket/key, file:///absolute/path or pvc://claim/path")


Uri = Annotated[
    str,
    Field(max_length=1024),
    AfterValidator(_known_uri),
    WithJsonSchema({"type": "string", "maxLength": 1024, "pattern": patterns.URI.regex}),
]


def _no_hub(text: str) -> str:
    if text.startswith("hf://"):
        raise ValueError("checkpoints cannot be written to a model hub; use s3://, file:/// or pvc://")
    return text


WritableUri = Annotated[
    Uri,
    AfterValidator(_no_hub),
    WithJsonSchema({"type": "string", "maxLength": 1024, "pattern": patterns.WRITABLE_URI.regex}),
]

QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"


def _quantity(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _known_quantity(text: str) -> str:
    if not re.match(QUANTITY_PATTERN, text) or len(text) > 32:
        raise ValueError('use a Kubernetes quantity such as 4, "500m" or "16Gi"')
    return text


# Integers may be written as such (`cpu: 4`); fractions are strings ("500m"), as the API conventions ask.
Quantity = Annotated[
    str,
    BeforeValidator(_quantity),
    AfterValidator(_known_quantity),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "pattern": QUANTITY_PATTERN,
        }
    ),
]

ShortName = Annotated[str, Field(min_length=1, max_length=63, pattern=patterns.SHORT_NAME.regex)]
Seconds = Annotated[int, Field(ge=1, le=31_536_000)]

# Objects whose fields belong to another system (a pod template, verl's configuration): passed on unchanged.
FreeObject = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]
