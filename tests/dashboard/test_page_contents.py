"""What pages show of other people's text, secrets, rights, runs and jobs."""

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import builders
import pytest

from dapo_core.db import CurvePoint, RunRow, RunTableRow
from dapo_core.jobspec.guard_fields import GUARD_DEFAULTS
from dapo_core.run.annotations import RunAnnotations
from dapo_core.run.guards import HEALTH_RULES
from dapo_core.run.metrics import REWARD_GENERATED, Validation
from dapo_core.run.redaction import HIDDEN, without_secrets
from dapo_core.run.validations import ValidationResult
from dapo_dashboard import escaping, help_topics
from dapo_dashboard.charts import panels
from dapo_dashboard.escaping import diff_html, text_html
from dapo_dashboard.pages import widgets
from dapo_dashboard.reads import comparison, run_columns
from dapo_dashboard.reads.run_columns import Filters
from dapo_dashboard.reads.run_list import Beside
from dapo_dashboard.server_settings import Access, DashboardSettings, SettingsError, read_access

HOSTILE = "<script>alert(1)</script> **bold** [x](javascript:alert(1)) $x$ :red[y]"


def test_markdown_of_others_is_escaped_and_cut() -> None:
    escaped = escaping.markdown(HOSTILE)
    assert not set(re.sub(r"\\.", "", escaped)) & set("<>*[]()$:_`#"), "every sign that means something is escaped"
    assert len(escaping.markdown("a" * 1_000_000)) < 400
    assert escaping.shown("a\x1b[31m\u202eb") == "a\ufffd[31m\ufffdb"


def test_differences_are_marked_and_nothing_of_the_answers_is_html() -> None:
    left, right = diff_html("the answer is <b>4</b>", "the answer is <b>5</b>")
    assert "<b>" not in left + right and "&lt;b&gt;" in left
    assert left.count("<del") == right.count("<ins") == 1
    assert "&lt;img" in text_html("<img src=x onerror=alert(1)>")
    assert len(text_html("word " * 300_000)) < 30_000


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        pytest.param({"env": [{"name": "A", "value": "s"}]}, {"env": [{"name": "A", "value": HIDDEN}]}, id="pod env"),
        pytest.param({"env_vars": {"WANDB": "s"}}, {"env_vars": {"WANDB": HIDDEN}}, id="environment as a mapping"),
        pytest.param({"password": "s"}, {"password": HIDDEN}, id="password"),
        pytest.param({"hfToken": "s", "api_key": "s"}, {"hfToken": HIDDEN, "api_key": HIDDEN}, id="tokens and keys"),
        pytest.param({"maxPromptTokens": 16}, {"maxPromptTokens": 16}, id="a number of tokens is no secret"),
        pytest.param({"secretName": "dapo-stores"}, {"secretName": "dapo-stores"}, id="where a secret lies is none"),
        pytest.param({"uri": "https://me:pw@host/x"}, {"uri": f"https://{HIDDEN}@host/x"}, id="password in a URL"),
        pytest.param({"note": "hf_" + "a" * 30}, {"note": HIDDEN}, id="a key by its shape"),
        pytest.param({"a": [{"b": {"secret": "s"}}]}, {"a": [{"b": {"secret": HIDDEN}}]}, id="deep down"),
        pytest.param({"lr": 0.1, "name": None}, {"lr": 0.1, "name": None}, id="the rest stays"),
    ],
)
def test_secrets_are_never_shown(given: Any, shown: Any) -> None:
    assert without_secrets(given) == shown


@pytest.mark.parametrize(
    ("user", "namespaces"),
    [
        pytest.param({"groups": ["team-a"]}, {"a", "shared"}, id="a group's namespaces, and everyone's"),
        pytest.param({"groups": ["admins", "team-a"]}, None, id="a star is all"),
        pytest.param({"groups": "team-a"}, {"a", "shared"}, id="one group as text"),
        pytest.param({"groups": ["unknown"]}, {"shared"}, id="an unknown group gives nothing"),
        pytest.param({}, {"shared"}, id="no groups at all"),
    ],
)
def test_namespaces_of_groups(tmp_path: Path, user: dict[str, Any], namespaces: set[str] | None) -> None:
    path = tmp_path / "access.yaml"
    path.write_text("groups:\n  admins: ['*']\n  team-a: [a]\neveryone: [shared]\n")
    assert read_access(path).namespaces(user) == namespaces


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("groups: [a]", id="groups that are no mapping"),
        pytest.param("group: {}", id="a misspelt field"),
        pytest.param("groups: {a: b}", id="namespaces that are no list"),
        pytest.param("everyone: x", id="everyone that is no list"),
        pytest.param(": :", id="no YAML"),
    ],
)
def test_a_wrong_access_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "access.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match="access file"):
        read_access(path)
    assert read_access(None) == Access.open()


@pytest.mark.parametrize(
    ("env", "words"),
    [
        pytest.param({}, "DAPO_METADATA_URL is not set", id="no store"),
        pytest.param({"DAPO_DASHBOARD_REFRESH_SECONDS": "soon"}, "not a number", id="no number"),
        pytest.param({"DAPO_DASHBOARD_REFRESH_SECONDS": "0"}, "between", id="too often"),
    ],
)
def test_wrong_settings_are_told(env: dict[str, str], words: str) -> None:
    given = env if not env else {"DAPO_METADATA_URL": "sqlite:///x"} | env
    with pytest.raises(SettingsError, match=words):
        DashboardSettings.from_env(given)


def row(run_id: str, **more: Any) -> RunTableRow:
    fields: dict[str, Any] = {
        "name": run_id, "namespace": "default", "state": "Running", "reason": None, "message": None, "created_at": 0.0,
        "started_at": None, "ended_at": None, "total_steps": 10, "owner": None, "tags": {}, "attempts": 1, "step": 5,
        "updated_at": 100.0, "alerts": 0, "values": {},
    }  # fmt: skip
    return RunTableRow(run_id=run_id, **(fields | more))


ROWS = [
    row("alpha", created_at=1.0, tags={"lr": "high"}, values={REWARD_GENERATED: CurvePoint(5, 1, 0.0, 0.9, None)}),
    row("beta", created_at=2.0, namespace="math", state="Failed", alerts=2),
    row("gamma", created_at=3.0, owner="ann", tags={"lr": "low", "seed": "1"}),
]


MEAN = Validation("aime", "mean", 8)
BESIDE = Beside(
    {"gamma": 60.0, "alpha": 90.0},
    {"alpha": ValidationResult(MEAN, 0.5, 20, 0.75, 10), "beta": ValidationResult(MEAN, 0.8, 20, 0.8, 20)},
    {"alpha": [0.1, None, 0.2]},
    {"alpha": 8},
)


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        pytest.param(Filters(), ["gamma", "beta", "alpha"], id="all, newest first"),
        pytest.param(Filters(search="ann gam"), ["gamma"], id="every word of a search, anywhere"),
        pytest.param(Filters(states=["Failed"]), ["beta"], id="state"),
        pytest.param(Filters(namespaces=["math"]), ["beta"], id="namespace"),
        pytest.param(Filters(tags=["lr=low", "seed=1"]), ["gamma"], id="all of several tags"),
        pytest.param(Filters(with_alerts=True), ["beta"], id="with alerts"),
        pytest.param(Filters(search="nothing"), [], id="nothing"),
    ],
)
def test_filters(filters: Filters, kept: list[str]) -> None:
    assert [each.run_id for each in run_columns.selected(ROWS, filters, "newest first", Beside())] == kept


SAID = Beside(
    said={
        "alpha": RunAnnotations("Diverged at noon", "ada", {"baseline": "ada"}),
        "beta": RunAnnotations(archived_by="bob"),
        "gamma": RunAnnotations(stars=frozenset({"ada"})),
    }
)


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        pytest.param(Filters(), ["gamma", "alpha"], id="archived runs are not shown"),
        pytest.param(Filters(with_archived=True), ["gamma", "beta", "alpha"], id="unless asked for"),
        pytest.param(Filters(starred_by="ada"), ["gamma"], id="one's own stars"),
        pytest.param(Filters(starred_by="bob"), [], id="not those of others"),
        pytest.param(Filters(tags=["baseline"]), ["alpha"], id="a tag that somebody gave"),
        pytest.param(Filters(search="diverged noon"), ["alpha"], id="words of a note"),
    ],
)
def test_filters_by_what_people_say(filters: Filters, kept: list[str]) -> None:
    assert [each.run_id for each in run_columns.selected(ROWS, filters, "newest first", SAID)] == kept


def test_the_table_has_notes_tags_and_the_viewers_stars() -> None:
    table = run_columns.columns(ROWS, SAID, "ada")
    assert table["★"] == ["", "", "★"] and table["Note"] == ["Diverged at noon", "", ""]
    assert table["Tags"][0] == ["lr=high", "baseline"] and run_columns.columns(ROWS, SAID, "bob")["★"] == [""] * 3


@pytest.mark.parametrize(
    ("order", "first"),
    [
        ("needs attention", "beta"),
        ("name", "alpha"),
        ("reward, highest first", "alpha"),
        ("time left", "gamma"),
        ("validation, best first", "beta"),
        ("no such order", "gamma"),
    ],
)
def test_orders(order: str, first: str) -> None:
    assert run_columns.selected(ROWS, Filters(), order, BESIDE)[0].run_id == first


def test_a_row_of_the_table() -> None:
    table = run_columns.columns(ROWS[:1], BESIDE)
    one = {name: values[0] for name, values in table.items()}
    assert one["Done"] == 50 and one["Step"] == "5/10" and one["Reward curve"] == [0.1, 0.2] and one["GPUs"] == 8
    assert (
        one["Last step"] == datetime.fromtimestamp(100.0) and one["State"] == "▶ Running" and one["Tags"] == ["lr=high"]
    )
    assert one["Time left"] == "1m30s"
    assert (one["Validation"], one["Best"], one["Best at step"]) == (50, 75, 10)


def test_a_run_without_a_validation_has_none_in_the_table() -> None:
    assert run_columns.columns(ROWS[2:], BESIDE)["Best"] == [None]


def runs() -> list[RunRow]:
    low = builders.dumped(builders.job(optimizer={"learningRate": 1e-6}))
    high = builders.dumped(builders.job(optimizer={"learningRate": 1e-5}, data={"seed": 1}))
    return [RunRow("a1", "a", spec=low, tags={"row": "x"}), RunRow("a2", "a", spec=low), RunRow("b1", "b", spec=high)]


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        pytest.param(comparison.BY_RUN, {"a1": ("a1",), "a2": ("a2",), "b1": ("b1",)}, id="each run"),
        pytest.param(comparison.BY_JOB, {"a": ("a1", "a2"), "b": ("b1",)}, id="job"),
        pytest.param("field optimizer.learningRate", {"1e-06": ("a1", "a2"), "1e-05": ("b1",)}, id="a field"),
        pytest.param("tag row", {"x": ("a1",), "no tag": ("a2", "b1")}, id="a tag"),
    ],
)
def test_groups_of_runs(by: str, groups: dict[str, tuple[str, ...]]) -> None:
    assert {group.name: group.run_ids for group in comparison.groups(runs(), by)} == groups
    assert "tag row" in comparison.groupings(runs())


def test_people_s_tags_are_groups_and_a_run_with_two_is_in_both() -> None:
    tags = {"a1": {"good": "ada"}, "b1": {"good": "bob", "rate": "ada"}, "other": {"hidden": "ada"}}
    said = {run_id: RunAnnotations(tags=given) for run_id, given in tags.items()}
    found = {group.name: group.run_ids for group in comparison.groups(runs(), comparison.BY_PEOPLE, said)}
    assert found == {"good": ("a1", "b1"), "no tag": ("a2",), "rate": ("b1",)}
    assert comparison.BY_PEOPLE in comparison.groupings(runs(), said)
    assert comparison.BY_PEOPLE not in comparison.groupings(runs(), {"other": said["other"]})


def test_of_very_many_tags_those_of_the_most_runs_are_groups() -> None:
    said = {"a1": RunAnnotations(tags={f"t{at}": "ada" for at in range(30)}), "b1": RunAnnotations(tags={"t29": "ada"})}
    found = comparison.groups(runs(), comparison.BY_PEOPLE, said)
    assert len(found) == comparison.MAX_COMPARED and found[0].run_ids == ("a1", "b1")


def test_only_what_differs_is_shown() -> None:
    rows = comparison.differences(runs())
    assert rows == {
        "data.seed": [rows["data.seed"][0], rows["data.seed"][0], "1"],
        "optimizer.learningRate": ["1e-06", "1e-06", "1e-05"],
    }


def test_help_speaks_of_every_panel_and_every_rule() -> None:
    anchors = {topic.anchor for topic in help_topics.TOPICS}
    assert {panel.key for panel in panels.ALL} == anchors
    assert set(HEALTH_RULES) == set(GUARD_DEFAULTS)
    assert {rule.topic.anchor for rule in HEALTH_RULES.values()} <= anchors


@pytest.mark.parametrize(
    ("after", "rows", "cells"),
    [
        pytest.param("abc", [0, 2], [(1, "Run")], id="as it was"),
        pytest.param("xabc", [1, 3], [(2, "Run")], id="one more above"),
        pytest.param("cba", [2, 0], [(1, "Run")], id="in another order"),
        pytest.param("ac", [0, 1], [], id="one that is gone"),
    ],
)
def test_a_selection_stays_with_its_rows(after: str, rows: list[int], cells: list[tuple[int, str]]) -> None:
    selection: dict[str, list[Any]] = {"rows": [0, 2], "columns": [], "cells": [(1, "Run")]}
    assert widgets.moved(selection, "abc", after) == {"rows": rows, "columns": [], "cells": cells}
