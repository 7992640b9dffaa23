"""The catalogue of metrics: every curve of a real run is in it, and the surfaces have no names of their own."""

import sqlite3
from pathlib import Path

import pytest

from dapo_core.db import Bucket
from dapo_core.run import metrics
from dapo_core.run.metrics import FAMILIES, METRICS, PHASES, Headline, Panel, Validation
from dapo_dashboard import demo_runs
from dapo_dashboard.charts import panels
from dapo_trainer.groups.dynamic_sampling import Kind
from dapo_trainer.groups.evaluated import Evaluated, validation_metrics
from dapo_trainer.rewards.verdict import Verdict

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def recorded() -> set[str]:
    """The metrics of real runs: those of the demo."""
    with sqlite3.connect(demo_runs.unpack() / "dapo.db") as database:
        return {name for (name,) in database.execute("select name from metric_names")}


def test_every_metric_of_a_real_run_is_in_the_catalogue_or_in_a_family(recorded: set[str]) -> None:
    assert [name for name in sorted(recorded) if not metrics.is_documented(name)] == []


def test_every_metric_that_the_trainer_names_is_in_the_catalogue_or_in_a_family() -> None:
    named = {value for name, value in vars(metrics).items() if name.isupper() and isinstance(value, str)}
    named |= {f"dapo/groups/{kind}" for kind in Kind}
    named |= set(validation_metrics([Evaluated("aime/2024", [Verdict(1.0, True, "2")], [10], [False])] * 2))
    assert [name for name in sorted(named) if not metrics.is_documented(name)] == []
    assert {name for name in named if name.startswith("dapo/")} <= set(METRICS), "ours are all listed"


def test_every_panel_shows_something_of_a_real_run_under_the_catalogues_title(recorded: set[str]) -> None:
    assert [plot.key for plot in panels.ALL] == [panel.anchor for panel in Panel]
    assert [plot.key for plot in panels.ALL if not any(map(plot.wants, recorded))] == []
    assert [plot.build({}).title for plot in panels.ALL] == [str(panel) for panel in Panel]


def test_a_metric_is_drawn_by_the_panel_that_the_catalogue_names() -> None:
    drawn = {plot.key: {name for name in METRICS if plot.wants(name)} for plot in panels.ALL}
    # The speed panel shows the step's phases, which add up to the step's time.
    drawn[Panel.SPEED.anchor].add(metrics.STEP_SECONDS)
    assert drawn == {
        panel.anchor: {metric.name for metric in METRICS.values() if metric.panel is panel} for panel in Panel
    }


def test_each_of_several_rewards_has_a_curve_in_the_panel_of_rewards() -> None:
    name = metrics.reward_named("format/strict")
    assert metrics.is_documented(name) and metrics.title_of(name) == "Reward: format/strict"
    [plot] = [plot for plot in panels.ALL if plot.wants(name)]
    buckets = {
        curve: [Bucket(1, 1, value, value, value, value, 1, None)]
        for curve, value in ((metrics.REWARD_GENERATED, 0.5), (name, 0.1))
    }
    chart = plot.build(buckets)
    assert chart.title == Panel.REWARD and [line.name for line in chart.lines if line.curve] == [
        "before filtering",
        "format/strict",
    ]


@pytest.mark.parametrize(
    ("values", "reward"),
    [
        pytest.param({metrics.REWARD_GENERATED: 0.1, metrics.REWARD_TRAINED: 0.2}, 0.1, id="before filtering"),
        pytest.param({metrics.REWARD_TRAINED: 0.2}, 0.2, id="else after it"),
        pytest.param({metrics.REWARD_GENERATED: 0.0, metrics.REWARD_TRAINED: 0.2}, 0.0, id="zero is a value"),
        pytest.param({}, None, id="neither"),
    ],
)
def test_what_reward_is(values: dict[str, float], reward: float | None) -> None:
    assert Headline.REWARD.of(values) == reward


@pytest.mark.parametrize(
    ("name", "validation"),
    [
        ("val-core/aime/2024/acc/mean@32", Validation("aime/2024", "mean", 32)),
        ("val-core/math/acc/maj@8/mean", Validation("math", "maj", 8)),
        ("val-aux/math/response_length/mean", None),
        ("dapo/accuracy/generated", None),
    ],
)
def test_validation_names(name: str, validation: Validation | None) -> None:
    assert metrics.validation_of(name) == validation


def test_a_validation_set_is_shown_by_its_largest_k() -> None:
    names = ["val-core/b/acc/mean@8", "val-core/a/acc/mean@2", "val-core/a/acc/mean@16", "val-core/a/acc/best@16/mean"]
    assert list(metrics.validation_means(names)) == ["val-core/a/acc/mean@16", "val-core/b/acc/mean@8"]


@pytest.mark.parametrize(
    ("name", "title", "percent", "panel"),
    [
        (metrics.REWARD_TRAINED, "Reward: after filtering", False, Panel.REWARD),
        (metrics.MEAN_PROBABILITY, "Entropy and mean probability: mean probability", True, Panel.ENTROPY),
        (metrics.TOKENS_TRAINED, "Response tokens trained on", False, None),
        ("val-core/math/acc/mean@8", "Validation: math mean@8", True, Panel.ACCURACY),
        ("rollout_corr/kl", "rollout_corr/kl", False, None),
    ],
)
def test_how_any_metric_is_shown(name: str, title: str, percent: bool, panel: Panel | None) -> None:
    assert (metrics.title_of(name), metrics.in_percent(name), metrics.panel_of(name)) == (title, percent, panel)


def test_phases_are_metrics_of_their_family() -> None:
    family = next(family for family in FAMILIES if family.shown == "timing_s/{phase}")
    assert all(family.has(phase.metric) for phase in PHASES)


def test_every_metric_and_family_is_documented() -> None:
    page = (DOCS / "metrics.md").read_text()
    assert [name for name in METRICS if f"`{name}`" not in page] == []
    assert [family.shown for family in FAMILIES if f"`{family.shown}`" not in page] == []
