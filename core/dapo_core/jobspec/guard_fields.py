"""Guards: rules that watch a run for the ways in which reinforcement learning fails."""

from dataclasses import dataclass
from typing import Final, Literal

from pydantic import Field

from dapo_core.jobspec.base import SpecModel, filled

GuardRule = Literal[
    "EntropyCollapse",
    "EntropyExplosion",
    "LengthExplosion",
    "RewardCollapse",
    "SamplingStarvation",
    "RolloutMismatch",
    "NonFinite",
]
GuardAction = Literal["Warn", "Suspend", "Fail"]


@dataclass(frozen=True)
class GuardDefaults:
    """Defaults of a rule: its threshold, in `unit`, and for how many consecutive steps it must hold. Meaning and remedy
    of the rule: `dapo_core.run.guards`."""

    threshold: float
    for_steps: int
    unit: str
    action: GuardAction = "Warn"


GUARD_DEFAULTS: Final[dict[GuardRule, GuardDefaults]] = {
    "EntropyCollapse": GuardDefaults(0.05, 10, "nats per token; the rule holds below it"),
    "EntropyExplosion": GuardDefaults(3.0, 10, "times the median of the run's first 20 steps; holds above it"),
    "LengthExplosion": GuardDefaults(0.5, 10, "share of responses truncated at the length limit; holds above it"),
    "RewardCollapse": GuardDefaults(0.5, 10, "reward units below the run's best mean of 10 steps; holds beyond it"),
    "SamplingStarvation": GuardDefaults(0.1, 5, "share of generated groups that are mixed; holds below it"),
    "RolloutMismatch": GuardDefaults(
        0.1, 10, "mean difference of a token's probability between rollout and trainer; holds above it"
    ),
    # verl skips an update whose gradient is not finite: one alone does no harm.
    "NonFinite": GuardDefaults(
        0.0, 3, "non-finite losses, rewards or gradient norms of a step; holds above it", "Fail"
    ),
}


def _thresholds() -> str:
    return "; ".join(f"{rule} {d.threshold:g} {d.unit}" for rule, d in GUARD_DEFAULTS.items())


class Guard(SpecModel):
    """One guard: a rule and what to do when it holds."""

    rule: GuardRule = Field(description="What the guard watches.")
    action: GuardAction = filled(
        "`Warn` sets the Degraded condition and an Event, `Suspend` also saves a checkpoint and deletes the pods, "
        "`Fail` ends the job. Default: NonFinite fails and the others warn."
    )
    threshold: float = filled(f"Value from which the rule holds. Default, by rule: {_thresholds()}.", ge=0, le=1e9)
    for_steps: int = filled(
        "Consecutive steps for which the rule must hold, so that one unusual batch raises no alert. Default, by rule: "
        + ", ".join(f"{rule} {d.for_steps}" for rule, d in GUARD_DEFAULTS.items())
        + ".",
        ge=1,
        le=100_000,
    )


def default_guards() -> list[dict[str, object]]:
    """The guards of a file without any, as YAML: every rule warns, and NonFinite fails the job."""
    return [{"rule": rule, "action": d.action} for rule, d in GUARD_DEFAULTS.items()]
