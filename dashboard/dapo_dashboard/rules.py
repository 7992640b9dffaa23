"""What to do about each health rule, and where the help page speaks of it. Pure."""

from collections.abc import Mapping
from typing import Final

TOPIC: Final[Mapping[str, str]] = {
    "EntropyCollapse": "entropy",
    "EntropyExplosion": "entropy",
    "LengthExplosion": "truncated",
    "RewardCollapse": "reward",
    "SamplingStarvation": "groups",
    "RolloutMismatch": "mismatch",
    "NonFinite": "gradient",
}
ADVICE: Final[Mapping[str, str]] = {
    "EntropyCollapse": "Raise `algorithm.clipHigh`, or sample at a higher temperature.",
    "EntropyExplosion": "Lower `optimizer.learningRate` or `algorithm.clipHigh`; resume from a checkpoint before it.",
    "LengthExplosion": "Raise `batch.maxResponseTokens`, or begin the overlong penalty earlier.",
    "RewardCollapse": "Resume from an earlier checkpoint with a lower `optimizer.learningRate`.",
    "SamplingStarvation": "Give prompts that the policy solves sometimes: easier if all are wrong, else harder.",
    "RolloutMismatch": "Set `algorithm.importanceCorrection`; look for a dtype that only rollout or trainer has.",
    "NonFinite": "Lower `optimizer.learningRate` or `optimizer.gradientClip`, and resume from the checkpoint before.",
}
