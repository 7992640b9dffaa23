"""The panels of a run's page: which curves stand together, and in which order. Pure.

The order is that of the paper's own monitoring: length, reward, entropy with mean probability, then what explains them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dapo_core.run import metrics
from dapo_dashboard.charts import palette
from dapo_dashboard.charts.curves import Curve, aligned, scaled, with_error
from dapo_dashboard.charts.options import Chart
from dapo_dashboard.charts.series import Line

Curves = Mapping[str, Curve]
TOKENS: Final = "perf/total_num_tokens"
VALIDATION: Final = re.compile(r"val-core/(?P<set>.+)/acc/(?P<kind>mean@(?P<k>\d+)|maj@\d+/mean|best@\d+/mean)$")
ERROR: Final = "val-aux/{set}/acc/mean@{k}/standard_error"
_TIMING: Final = "timing_s/"
# Phases in the order in which a step runs through them; `step` is their sum.
PHASES: Final = {
    "gen": "generate",
    "reward": "score",
    "old_log_prob": "old log-probabilities",
    "ref": "reference",
    "adv": "advantages",
    "update_actor": "update",
    "update_weights": "send weights",
    "save_checkpoint": "checkpoint",
    "testing": "validate",
}
_HARDWARE: Final = {
    "actor/perf/max_memory_allocated_gb": "accelerator",
    "actor/perf/max_memory_reserved_gb": "accelerator, reserved",
    "actor/perf/cpu_memory_used_gb": "host",
}
MFU: Final = "perf/mfu/actor"


@dataclass(frozen=True)
class Panel:
    """A chart to be: the metrics that it needs, by a test on names, and how it is made of them."""

    key: str
    wants: Callable[[str], bool]
    build: Callable[[Curves], Chart]


def wanted(panels: Sequence[Panel], names: Sequence[str]) -> list[str]:
    """The metrics that the panels need, of those that the run has."""
    return [name for name in names if any(panel.wants(name) for panel in panels)]


def build(panels: Sequence[Panel], curves: Curves) -> list[Chart]:
    """The charts that have something to show."""
    charts = (panel.build(curves) for panel in panels)
    return [chart for chart in charts if any(line.curve for line in chart.lines)]


def free_panel(metric: str) -> Panel:
    """A chart of any one metric."""
    known = metrics.METRICS.get(metric)
    title = metric if known is None else f"{known.panel.value}: {known.title}"
    key = "free-" + re.sub(r"\W+", "-", metric)
    return Panel(
        key,
        lambda name: name == metric,
        lambda curves: Chart(key, title, known.unit if known else "", [Line(metric, curves.get(metric, []))]),
    )


def _of(
    title: str, unit: str, help_anchor: str, lines: Mapping[str, Line], *, right_unit: str = "", from_zero: bool = False
) -> Panel:
    """A panel of listed metrics; the lines' curves are filled in when it is built. Shares become percent."""

    def make(curves: Curves) -> Chart:
        filled = [
            Line(
                line.name,
                _percent(name, curves.get(name, [])),
                line.right,
                line.colour,
                line.dash,
                line.stack,
                line.bars,
            )
            for name, line in lines.items()
        ]
        return Chart(help_anchor, title, unit, filled, right_unit, help_anchor, from_zero)

    return Panel(help_anchor, lines.__contains__, make)


def _percent(name: str, curve: Curve) -> Curve:
    known = metrics.METRICS.get(name)
    return scaled(curve, 100) if known is not None and known.unit in ("share", "probability") else curve


def _line(name: str, **style: object) -> Line:
    return Line(name, [], **style)  # type: ignore[arg-type]


def _validation(curves: Curves) -> Chart:
    lines: list[Line] = []
    several = len({found["set"] for name in curves if (found := VALIDATION.match(name))}) > 1
    for name in sorted(curves, key=lambda name: ("/mean@" not in name, name)):
        found = VALIDATION.match(name)
        if found is None or not curves[name]:
            continue
        curve: Curve = scaled(curves[name], 100)
        if found["k"]:
            errors = curves.get(ERROR.format(set=found["set"], k=found["k"]), [])
            curve = with_error(curve, scaled(errors, 100))
        dash = "solid" if found["k"] else "dotted"
        name_of_set = f"{found['set']} " if several else ""
        lines.append(Line(f"{name_of_set}{found['kind'].removesuffix('/mean')}", curve, dash=dash))
    training = scaled(curves.get(metrics.ACCURACY_GENERATED, []), 100)
    trained = scaled(curves.get(metrics.ACCURACY_TRAINED, []), 100)
    means = sum("mean@" in line.name for line in lines)
    lines[means:means] = [
        Line("training", training),
        Line("training, filtered", trained, dash="dashed"),
    ]
    return Chart("accuracy", "Validation against training accuracy", "%", lines, help_anchor="accuracy")


def _is_validation(name: str) -> bool:
    in_errors = name.startswith("val-aux/") and name.endswith("/standard_error")
    return (
        in_errors
        or VALIDATION.match(name) is not None
        or name in (metrics.ACCURACY_GENERATED, metrics.ACCURACY_TRAINED)
    )


def _phases(curves: Curves) -> Chart:
    names = [f"{_TIMING}{phase}" for phase in PHASES if curves.get(f"{_TIMING}{phase}")]
    others = sorted(name for name in curves if _is_phase(name) and name not in names)
    whole = aligned([curves[name] for name in [*names, *others]])
    lines = [
        Line(PHASES.get(name.removeprefix(_TIMING), name.removeprefix(_TIMING)), curve, stack=True)
        for name, curve in zip([*names, *others], whole, strict=True)
    ]
    speed = Line("tokens/s →", curves.get(metrics.THROUGHPUT, []), right=True, dash="dashed")
    return Chart("speed", "Seconds per phase", "seconds", [*lines, speed], "tokens/s", "speed", True)


def _is_phase(name: str) -> bool:
    """A part of a step: not the whole of it, and not a part of a part."""
    phase = name.removeprefix(_TIMING)
    return phase != name and phase in PHASES


def _is_speed(name: str) -> bool:
    return _is_phase(name) or name == metrics.THROUGHPUT


def _hardware(curves: Curves) -> Chart:
    lines = [Line(title, curves.get(name, [])) for name, title in _HARDWARE.items()]
    mfu = Line("MFU, % →", scaled(curves.get(MFU, []), 100), right=True, dash="dashed")
    return Chart("hardware", "Memory and utilisation", "GB", [*lines, mfu], "%", "hardware")


def _is_hardware(name: str) -> bool:
    return name in _HARDWARE or name == MFU


FIRST: Final = (
    _of(
        "Response length",
        "tokens",
        "length",
        {metrics.LENGTH_MEAN: _line("mean"), metrics.LENGTH_MAX: _line("longest", dash="dashed")},
    ),
    _of(
        "Reward",
        "",
        "reward",
        {
            metrics.REWARD_GENERATED: _line("before filtering"),
            metrics.REWARD_TRAINED: _line("after filtering", dash="dashed"),
        },
    ),
    _of(
        "Entropy and mean probability",
        "nats",
        "entropy",
        {
            metrics.ENTROPY: _line("entropy per token"),
            metrics.MEAN_PROBABILITY: _line("mean probability, % →", right=True, dash="dashed"),
        },
        right_unit="%",
    ),
)
"""The paper's three: what to look at first."""

THEN: Final = (
    Panel("accuracy", _is_validation, _validation),
    _of(
        "Group outcomes",
        "%",
        "groups",
        {
            metrics.GROUPS_ALL_WRONG: _line("all wrong", colour=palette.WRONG, stack=True),
            metrics.GROUPS_MIXED: _line("mixed", colour=palette.MIXED, stack=True),
            metrics.GROUPS_ALL_RIGHT: _line("all right", colour=palette.RIGHT, stack=True),
            metrics.GROUPS_LOST: _line("lost", colour=palette.LOST, stack=True),
        },
    ),
    _of(
        "Generation batches",
        "batches",
        "sampling",
        {
            metrics.GENERATION_BATCHES: _line("batches"),
            metrics.GROUPS_GENERATED: _line("prompts →", right=True, dash="dashed"),
            metrics.GROUPS_CARRIED: _line("carried →", right=True, dash="dotted"),
            metrics.GROUPS_DROPPED: _line("dropped →", right=True, dash="dotted"),
        },
        right_unit="prompts",
        from_zero=True,
    ),
    _of("Gradient norm", "", "gradient", {metrics.GRADIENT_NORM: _line("gradient norm")}),
    _of(
        "Clipped tokens",
        "%",
        "clip",
        {
            metrics.CLIP_FRACTION_HIGH: _line("above"),
            metrics.CLIP_FRACTION_LOW: _line("below", dash="dashed"),
        },
    ),
    _of("KL to the policy that sampled", "nats", "kl", {metrics.KL: _line("approximate KL")}),
    _of(
        "Trainer against rollout",
        "%",
        "mismatch",
        {
            metrics.MISMATCH: _line("difference in probability"),
            metrics.STALENESS: _line("versions behind →", right=True, dash="dashed"),
        },
        right_unit="versions",
    ),
    Panel("speed", _is_speed, _phases),
    Panel("hardware", _is_hardware, _hardware),
    _of(
        "Cut off and failed",
        "%",
        "truncated",
        {
            metrics.TRUNCATED: _line("responses cut at the limit"),
            metrics.REWARD_FAILURES: _line("checks that failed →", right=True, dash="dashed"),
        },
        from_zero=True,
    ),
    _of(
        "Loss and learning rate",
        "",
        "loss",
        {
            metrics.POLICY_LOSS: _line("policy loss"),
            metrics.LEARNING_RATE: _line("learning rate →", right=True, dash="dashed"),
        },
    ),
)
"""What explains the first three."""

ALL: Final = (*FIRST, *THEN)
