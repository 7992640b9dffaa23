"""docs/metrics.md: every metric of a run, and what the surfaces compute from them, made from the catalogue."""

from collections.abc import Iterable, Iterator

from dapo_core.run.metrics import FAMILIES, METRICS, Headline, Metric, Panel
from dapo_core.run.progress import PACE_STEPS

_INTRO = f"""# Metrics of a run

Made by `python -m dapo_core.generate --write` from `dapo_core.run.metrics`; changes here are lost. Names are verl's
where verl has one; ours begin with `dapo/`. A run's page draws one chart for each of the panels below and any other
metric on request; what the curves look like in health and in trouble is on the dashboard's help page.

Curves of the groups that are trained on look better than the policy is: dynamic sampling rejects the groups that are
all wrong or all right. That is why reward and accuracy before filtering are there too. The prompts of a step add up:
carried in + generated = trained on + rejected + dropped + carried to the next step.

**Time left** is the same everywhere: for each step left the median time of the attempt's last {PACE_STEPS} steps, plus,
for each validation and each checkpoint left, the median time of those in the last {PACE_STEPS} steps that had any.
"""


def metrics_reference() -> str:
    """The whole page as Markdown."""
    return "\n".join([_INTRO, *_headlines(), *_panels(), *_families()]) + "\n"


def _headlines() -> Iterator[str]:
    yield "| word | metric: the first that the run has |"
    yield "|---|---|"
    for headline in Headline:
        yield f"| {headline.title} | {', else '.join(f'`{name}`' for name in headline.value)} |"


def _panels() -> Iterator[str]:
    for panel in Panel:
        yield f"\n## {panel}\n"
        if panel is Panel.ACCURACY:
            yield "Also the validation metrics: mean@k with 1.96 standard errors, best@k and maj@k of each set.\n"
        if panel is Panel.SPEED:
            yield "Drawn as the seconds of the step's phases (`timing_s/{phase}`), one on the other.\n"
        yield from _table(metric for metric in METRICS.values() if metric.panel is panel)
    yield "\n## In no panel\n"
    yield from _table(metric for metric in METRICS.values() if metric.panel is None)


def _table(metrics: Iterable[Metric]) -> Iterator[str]:
    yield "| metric | title | unit | better |"
    yield "|---|---|---|---|"
    for metric in metrics:
        yield f"| `{metric.name}` | {metric.title} | {metric.unit} | {metric.better or ''} |"


def _families() -> Iterator[str]:
    yield "\n## Families\n"
    yield "Metrics that are not listed by name; a run has those that verl reports for its settings.\n"
    yield "| metrics | unit | meaning |"
    yield "|---|---|---|"
    for family in FAMILIES:
        yield f"| `{family.shown}` | {family.unit} | {family.meaning} |"
