"""Defaults that are not constants: the presets' values, and numbers that follow from other fields. Pure."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from dapo_core.jobspec.guard_fields import GUARD_DEFAULTS, default_guards
from dapo_core.jobspec.layout import slots_of
from dapo_core.jobspec.losses import DEFAULT_LOSS, LOSSES, loss_defaults
from dapo_core.jobspec.training import DEFAULT_STEPS

Tree = dict[str, Any]

# The soft penalty covers a fifth of the limit: 4,096 of the paper's 20,480 tokens.
CACHE_SHARE: Final = 5
UPDATES_PER_STEP: Final = 16

_DAPO: Final[Tree] = {
    "algorithm": {
        "clipLow": 0.2,
        "clipHigh": 0.28,
        "dualClip": 10.0,
        "lossAggregation": "TokenMean",
        "normalizeByStd": True,
        "klCoefficient": 0.0,
        "dynamicSampling": {
            "enabled": True,
            "filterBy": "accuracy",
            "maxGenerationBatches": 10,
            "onExhausted": "TrainPartial",
            "surplus": "Discard",
        },
        "overlong": {
            "filter": True,
            "penalty": {"enabled": True, "expectedTokens": 16384, "cacheTokens": 4096, "factor": 1.0},
        },
        "entropyCoefficient": 0.0,
    },
    "optimizer": {"learningRate": 1.0e-6, "warmupSteps": 20, "weightDecay": 0.1, "gradientClip": 1.0},
    "batch": {
        "prompts": 512,
        "responsesPerPrompt": 16,
        "miniBatchResponses": 512,
        "maxResponseTokens": 20480,
        "temperature": 1.0,
        "topP": 1.0,
    },
}

# The first row of Table 1: the same training without any of the four techniques. No KL term, because no row has one.
_GRPO_DIFFERENCES: Final[Tree] = {
    "algorithm": {
        "clipHigh": 0.2,
        "lossAggregation": "SequenceMean",
        "dynamicSampling": {"enabled": False},
        "overlong": {"filter": False, "penalty": {"enabled": False}},
    },
}


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """`base` with the values of `over` in it, merged mapping by mapping; neither is changed."""
    result = deepcopy(dict(base))
    for key, value in over.items():
        below = result.get(key)
        result[key] = (
            merged(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else deepcopy(value)
        )
    return result


PRESETS: Final[dict[str, Tree]] = {"dapo": _DAPO, "grpo": merged(_DAPO, _GRPO_DIFFERENCES)}
DEFAULT_PRESET: Final = "dapo"


def chosen_preset(spec: Mapping[str, Any]) -> str:
    """The preset that a spec names; dapo if it names none, or one that does not exist (which validation reports)."""
    named = _at(spec, "algorithm", "preset")
    return named if isinstance(named, str) and named in PRESETS else DEFAULT_PRESET


def chosen_loss(spec: Mapping[str, Any]) -> str:
    """The loss that a spec names; dapo if it names none, or one that does not exist (which validation reports)."""
    named = _at(spec, "algorithm", "loss")
    return named if isinstance(named, str) and named in LOSSES else DEFAULT_LOSS


def preset_values(preset: str, loss: str) -> Tree:
    """What a preset fills in with a loss."""
    values = PRESETS[preset]
    return {**values, "algorithm": loss_defaults(values["algorithm"], loss)}


def fill(spec: Mapping[str, Any]) -> Tree:
    """The spec with all defaults that are not constants. Wrong types are left for validation to report."""
    filled = merged(preset_values(chosen_preset(spec), chosen_loss(spec)), spec)
    _fill_penalty(spec, filled)
    _fill_mini_batch(spec, filled)
    _fill_schedule(filled)
    _fill_guards(filled)
    _fill_best_metric(filled)
    return filled


def _fill_penalty(spec: Mapping[str, Any], filled: Tree) -> None:
    in_file = _at(spec, "algorithm", "overlong", "penalty")
    penalty = _at(filled, "algorithm", "overlong", "penalty")
    limit = _count(_at(filled, "batch", "maxResponseTokens"))
    if not isinstance(penalty, dict) or limit is None:
        return
    named = in_file if isinstance(in_file, Mapping) else {}
    expected, cache = _count(named.get("expectedTokens"), least=0), _count(named.get("cacheTokens"))
    if "cacheTokens" not in named:
        penalty["cacheTokens"] = max(1, limit // CACHE_SHARE if expected is None else limit - expected)
    if "expectedTokens" not in named:
        penalty["expectedTokens"] = max(0, limit - (cache or penalty["cacheTokens"]))
    if named and "enabled" not in named:
        penalty["enabled"] = True


def _fill_mini_batch(spec: Mapping[str, Any], filled: Tree) -> None:
    prompts = _count(_at(filled, "batch", "prompts"))
    group = _count(_at(filled, "batch", "responsesPerPrompt"))
    if prompts is None or group is None or _at(spec, "batch", "miniBatchResponses") is not None:
        return
    filled["batch"]["miniBatchResponses"] = group * mini_batch_prompts(prompts, group, _ranks(filled))


def mini_batch_prompts(prompts: int, group: int, ranks: int) -> int:
    """The fewest whole groups per update that make at most 16 equal updates a step and fit the ranks evenly."""
    candidates = [d for d in _divisors(prompts) if d * UPDATES_PER_STEP >= prompts]
    return next((d for d in candidates if d * group % ranks == 0), candidates[0])


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def _ranks(filled: Tree) -> int:
    pods = _count(_at(filled, "topology", "trainer", "replicas")) or 1
    gpus = _count(_at(filled, "topology", "trainer", "gpusPerPod"), least=0)
    return pods * slots_of(1 if gpus is None else gpus)


def _fill_schedule(filled: Tree) -> None:
    schedule = filled.setdefault("schedule", {})
    if isinstance(schedule, dict) and schedule.get("steps") is None and schedule.get("epochs") is None:
        schedule["steps"] = DEFAULT_STEPS


def _fill_guards(filled: Tree) -> None:
    guards = filled.setdefault("guards", default_guards())
    for guard in guards if isinstance(guards, list) else []:
        rule = guard.get("rule") if isinstance(guard, dict) else None
        if isinstance(rule, str) and rule in GUARD_DEFAULTS:
            defaults = GUARD_DEFAULTS[rule]
            guard.setdefault("action", defaults.action)
            guard.setdefault("threshold", defaults.threshold)
            guard.setdefault("forSteps", defaults.for_steps)


def _fill_best_metric(filled: Tree) -> None:
    checkpoints, validation = filled.get("checkpoints"), _at(filled, "data", "validation")
    if not isinstance(checkpoints, dict) or not _count(checkpoints.get("keepBest")) or checkpoints.get("bestMetric"):
        return
    first = validation[0] if isinstance(validation, list) and validation else None
    if isinstance(first, dict) and isinstance(first.get("name"), str):
        samples = _count(first.get("samplesPerPrompt", 32))
        checkpoints["bestMetric"] = f"val-core/{first['name']}/acc/mean@{samples or 32}"


def _at(tree: Any, *path: str) -> Any:
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def _count(value: object, least: int = 1) -> int | None:
    """`value` if it is an integer from `least` to a billion, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value <= 10**9 else None
