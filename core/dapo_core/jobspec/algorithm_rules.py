"""Rules between the fields of `algorithm`: the loss and what belongs to it, and the bounds of the rejection."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic.alias_generators import to_snake

from dapo_core.errors import Problem
from dapo_core.jobspec.algorithm import Algorithm
from dapo_core.jobspec.losses import FIXED, LOSSES, USED_BY
from dapo_core.jobspec.presets import PRESETS
from dapo_core.jobspec.rule_table import CelRule, RuleTable, or_default, or_preset, problem

RULES: Final = RuleTable()

# Their two bounds are a band around 1: CISPO has no lower one, and SAPO none at all.
_BAND: Final = ("dapo", "gspo", "drgrpo")
_LOW, _HIGH = (or_preset("algorithm", field, "self") for field in ("clipLow", "clipHigh"))


def _value(algorithm: Algorithm, field: str) -> Any:
    return getattr(algorithm, to_snake(field))


def _among(losses: tuple[str, ...]) -> str:
    """CEL: whether the loss is one of `losses`."""
    named = " || ".join(f"self.loss == '{loss}'" for loss in losses)
    return f"(has(self.loss) ? {named} : {'true' if 'dapo' in losses else 'false'})"


def _listed(words: Mapping[str, Any] | tuple[str, ...]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


@RULES.rule(
    "algorithm",
    cel=CelRule(
        "spec.algorithm",
        rule=f"!{_among(_BAND)} || {_LOW} <= {_HIGH}",
        message="spec.algorithm.clipLow is more than spec.algorithm.clipHigh "
        f"({PRESETS['dapo']['algorithm']['clipHigh']:g} with preset dapo, "
        f"{PRESETS['grpo']['algorithm']['clipHigh']:g} with grpo, {LOSSES['gspo']['clipHigh']:g} with loss gspo): "
        "set clipLow to at most clipHigh.",
        field_path=".clipLow",
    ),
)
def clip_order(algorithm: Algorithm) -> Iterator[Problem]:
    low, high = algorithm.clip_low, algorithm.clip_high
    if algorithm.loss in _BAND and low is not None and high is not None and low > high:
        yield problem(
            "algorithm.clipLow",
            f"is {low:g} but spec.algorithm.clipHigh is {high:g}: set clipLow to at most clipHigh.",
        )


@RULES.rule(
    "algorithm",
    cel=CelRule(
        "spec.algorithm",
        rule=" && ".join(f"(!has(self.{field}) || {_among(losses)})" for field, losses in USED_BY.items()),
        message="spec.algorithm has a field that its loss does not use: "
        + "; ".join(f"{field} belongs to {_listed(losses)}" for field, losses in USED_BY.items())
        + ". Remove it, or change spec.algorithm.loss.",
        field_path=".loss",
    ),
)
def fields_of_the_loss(algorithm: Algorithm) -> Iterator[Problem]:
    for field, losses in USED_BY.items():
        value = _value(algorithm, field)
        if value is not None and algorithm.loss not in losses:
            yield problem(
                f"algorithm.{field}",
                f"is {value:g} but spec.algorithm.loss is {algorithm.loss}, which does not use it: remove it, or set "
                f"loss to {' or '.join(losses)}.",
            )
        if value is None and algorithm.loss in losses:
            yield problem(
                f"algorithm.{field}",
                f"is null but spec.algorithm.loss {algorithm.loss} needs it: set a number, or remove it for the "
                "default.",
            )


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cel(value: object) -> str:
    return _written(value) if isinstance(value, bool) else f"'{value}'"


@RULES.rule(
    "algorithm",
    cel=CelRule(
        "spec.algorithm",
        rule=" && ".join(
            f"(!has(self.loss) || self.loss != '{loss}' || !has(self.{field}) || self.{field} == {_cel(value)})"
            for loss, values in FIXED.items()
            for field, value in values.items()
        ),
        message="spec.algorithm.loss "
        + ", and ".join(
            f"{loss} needs {_listed(tuple(f'{field} {_written(value)}' for field, value in values.items()))}"
            for loss, values in FIXED.items()
        )
        + ": remove the other value, or change the loss.",
        field_path=".loss",
    ),
)
def values_of_the_loss(algorithm: Algorithm) -> Iterator[Problem]:
    for field, wanted in FIXED.get(algorithm.loss, {}).items():
        value = _value(algorithm, field)
        if value != wanted:
            yield problem(
                f"algorithm.{field}",
                f"is {_written(value)} but spec.algorithm.loss is {algorithm.loss}, which needs {_written(wanted)}: "
                "remove it, or choose another loss.",
            )


_REJECTION: Final = "spec.algorithm.rolloutRejection"


@RULES.rule(
    "algorithm",
    cel=CelRule(
        _REJECTION,
        rule="has(self.measure) && self.measure != 'Ratio' ? !has(self.lower) : "
        f"{or_default('self.upper', 2.0)} > 1.0 && (!has(self.lower) || self.lower < 1.0)",
        message=f"{_REJECTION}: measure Ratio needs lower < 1 < upper, because 1 is the ratio of equal probabilities; "
        "K2 and K3 are distances and have only an upper bound, so remove lower.",
        field_path=".upper",
    ),
)
def bounds_of_the_rejection(algorithm: Algorithm) -> Iterator[Problem]:
    rejection = algorithm.rollout_rejection
    if rejection is None:
        return
    field = "algorithm.rolloutRejection"
    if rejection.measure != "Ratio":
        if rejection.lower is not None:
            yield problem(
                f"{field}.lower",
                f"is {rejection.lower:g} but measure is {rejection.measure}, a distance with only an upper bound: "
                "remove lower.",
            )
        return
    if rejection.upper <= 1:
        yield problem(
            f"{field}.upper",
            f"is {rejection.upper:g}, but 1 is the ratio of equal probabilities: set it above 1.",
        )
    if rejection.lower is not None and rejection.lower >= 1:
        yield problem(
            f"{field}.lower",
            f"is {rejection.lower:g}, but 1 is the ratio of equal probabilities: set it below 1.",
        )


@RULES.rule(
    "algorithm",
    cel=CelRule(
        _REJECTION,
        rule="!has(self.level) || self.level != 'SequenceMax' || (has(self.measure) && self.measure != 'Ratio')",
        message=f"{_REJECTION}.level SequenceMax needs measure K2 or K3: the largest of a response's ratios says "
        "nothing of the small ones.",
        field_path=".level",
    ),
)
def maximum_of_a_distance(algorithm: Algorithm) -> Iterator[Problem]:
    rejection = algorithm.rollout_rejection
    if rejection is not None and rejection.level == "SequenceMax" and rejection.measure == "Ratio":
        yield problem(
            "algorithm.rolloutRejection.level",
            "is SequenceMax but measure is Ratio, and the largest of a response's ratios says nothing of the small "
            "ones: set measure to K2 or K3.",
        )
