"""What the browser is sent of a step and of a response: phases, groups and tokens. Pure.

`browser/step.js` and `browser/tokens.js` read it; texts are sent as they are, and shown as text there."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dapo_core.run.formatting import duration, number, printable
from dapo_core.run.metrics import PHASES
from dapo_core.run.recording import Fate, RecordedGroup, RecordedResponse
from dapo_dashboard.charts import palette

# Of one response; a page of so many stays quick.
MAX_TOKENS: Final = 24_000
FATE_COLORS: Final[Mapping[str, str]] = {
    Fate.TRAINED: palette.MIXED,
    Fate.ALL_RIGHT: palette.RIGHT,
    Fate.ALL_WRONG: palette.WRONG,
    Fate.LOST: palette.LOST,
}
_OTHER: Final = palette.SUSPEND


def phases(seconds: Mapping[str, float]) -> list[dict[str, Any]]:
    """The phases of a step one after the other: title, when each began and how long it took, in seconds."""
    found: list[dict[str, Any]] = []
    begun = 0.0
    for phase in PHASES:
        took = seconds.get(phase.metric)
        if took is not None and math.isfinite(took) and took > 0:
            found.append({"title": phase.title, "from": begun, "seconds": took, "text": duration(took)})
            begun += took
    return found


def groups(recorded: Sequence[RecordedGroup], chosen: str | None) -> list[dict[str, Any]]:
    """A point for each group: mean length and reward, what became of it, and what a pointer shows."""
    return [_point(group, group.uid == chosen) for group in recorded if group.rewards]


def _point(group: RecordedGroup, chosen: bool) -> dict[str, Any]:
    count = len(group.rewards)
    reward, length = sum(group.rewards) / count, sum(group.lengths) / count
    advantage = max(map(abs, group.advantages), default=0.0)
    waited = "" if group.waited_seconds is None else f", waited {duration(group.waited_seconds)}"
    said = f"reward {number(reward)}, {length:.0f} tokens, {sum(group.correct)} of {count} right"
    return {
        "uid": group.uid,
        "x": _finite(length),
        "y": _finite(reward),
        "size": _finite(advantage),
        "color": FATE_COLORS.get(Fate(group.fate), _OTHER) if group.fate in list(Fate) else _OTHER,
        "recorded": group.tokens_recorded,
        "chosen": chosen,
        "text": f"{said}, {group.reason}{waited}\n{printable(group.prompt[:200])}",
    }


def legend(recorded: Sequence[RecordedGroup]) -> list[dict[str, Any]]:
    """What became of the groups, how many each."""
    found: dict[str, list[Any]] = {}
    for group in recorded:
        color = FATE_COLORS.get(Fate(group.fate), _OTHER) if group.fate in list(Fate) else _OTHER
        entry = found.setdefault(group.reason, [color, 0])
        entry[1] += 1
    return [{"text": f"{count} {printable(reason)}", "color": color} for reason, (color, count) in found.items()]


def tokens(response: RecordedResponse) -> dict[str, Any]:
    """The tokens of a response, and what is known of each: a list of values by name, from which a viewer chooses."""
    count = min(len(response.pieces), MAX_TOKENS)
    rollout, trainer = response.rollout_log_probs[:count], response.trainer_log_probs[:count]
    ratio = [math.exp(min(20.0, new - old)) for old, new in zip(rollout, trainer, strict=False)]
    measures = [
        _measure("Probability under the rollout", "share", [math.exp(min(0.0, value)) for value in rollout]),
        _measure("Probability under the trainer", "share", [math.exp(min(0.0, value)) for value in trainer]),
        _measure("Trainer / rollout", "ratio", ratio),
        _measure("Importance weight", "ratio", response.weights[:count]),
        _measure("Clipped", "sign", response.clipped[:count]),
        _measure("Entropy", "size", response.entropies[:count]),
        _measure("Has a loss", "flag", [float(value) for value in response.has_loss[:count]]),
    ]
    return {
        "pieces": [printable(piece) for piece in response.pieces[:count]],
        "masked": [place for place, value in enumerate(response.has_loss[:count]) if not value],
        "measures": [measure for measure in measures if len(measure["values"]) == count and count],
        "left": len(response.pieces) - count,
    }


def _measure(name: str, scale: str, values: Sequence[float]) -> dict[str, Any]:
    return {"name": name, "scale": scale, "values": [_finite(value) for value in values]}


def _finite(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None
