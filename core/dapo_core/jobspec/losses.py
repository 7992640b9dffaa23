"""The losses of `algorithm.loss`: what each sets, uses and demands of the other fields of `algorithm`. Pure data.

A loss comes over the preset and under the file: it changes the defaults of fields that its paper gives other values.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

LossName = Literal["dapo", "gspo", "cispo", "sapo", "drgrpo"]
DEFAULT_LOSS: Final = "dapo"

# The defaults that differ from the preset's; sources are in the fields' descriptions and docs/algorithms.md.
LOSSES: Final[Mapping[str, Mapping[str, Any]]] = {
    "dapo": {},
    "gspo": {"clipLow": 3e-4, "clipHigh": 4e-4, "lossAggregation": "SequenceMean"},
    "cispo": {"clipLow": 1.0, "clipHigh": 0.2, "lossAggregation": "TokenMean"},
    "sapo": {"lossAggregation": "SequenceMean", "tauPositive": 1.0, "tauNegative": 1.05},
    "drgrpo": {"clipLow": 0.2, "clipHigh": 0.2, "lossAggregation": "SequenceSum", "normalizeByStd": False},
}

# Fields that only some losses read; for the others they have no value.
USED_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "clipLow": ("dapo", "gspo", "cispo", "drgrpo"),
    "clipHigh": ("dapo", "gspo", "cispo", "drgrpo"),
    "dualClip": ("dapo", "drgrpo"),
    "tauPositive": ("sapo",),
    "tauNegative": ("sapo",),
}

# With other values it would be another loss: verl's SAPO averages by response whatever the setting, and Dr. GRPO is the
# sum over a response without division by the standard deviation.
FIXED: Final[Mapping[str, Mapping[str, Any]]] = {
    "sapo": {"lossAggregation": "SequenceMean"},
    "drgrpo": {"lossAggregation": "SequenceSum", "normalizeByStd": False},
}


def loss_defaults(preset: Mapping[str, Any], loss: str) -> dict[str, Any]:
    """The values of `algorithm`'s fields with a loss: its own, else the preset's; None for those it does not use."""
    return {**preset, **{field: None for field, losses in USED_BY.items() if loss not in losses}, **LOSSES[loss]}
