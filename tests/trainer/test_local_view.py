"""The live view: what it knows, and how that looks in terminals of all sizes."""

import pytest
from local_views import NOW, empty, trained, values
from rich.cells import cell_len

from dapo_core.run import metrics
from dapo_core.run.formatting import Glyphs
from dapo_core.run.metrics import STEP_SECONDS
from dapo_trainer.local.display import note_line, phase_line, step_line
from dapo_trainer.local.run_view import (
    EVENTS_KEPT,
    Note,
    RunView,
    with_attempt,
    with_event,
    with_heartbeat,
    with_mood,
    with_step,
)
from dapo_trainer.local.screen import Screen, render
from dapo_trainer.process.trainer_process import Heartbeat


def text(view: RunView, width: int = 80, height: int = 24, glyphs: Glyphs | None = None) -> str:
    return "\n".join(line.plain for line in render(view, Screen(width, height, NOW, glyphs or Glyphs())))


class TestFolding:
    def test_a_restart_drops_what_the_old_attempt_did_beyond_its_checkpoint(self) -> None:
        view = with_attempt(empty(), 1, 0, NOW)
        for step in range(1, 8):
            view = with_step(view, 1, step, NOW + step, {"m": float(step)})
        view = with_step(with_attempt(view, 2, 1, NOW), 2, 6, NOW + 20, {"m": 60.0})
        assert view.curve("m") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 5.0), (6, 60.0)]
        assert view.step == 6

    def test_values_that_are_not_finite_are_no_points(self) -> None:
        view = with_step(empty(), 1, 1, NOW, {"b": float("nan"), "c": float("inf"), "d": 1.0})
        assert set(view.curves) == {"d"}

    @pytest.mark.parametrize(
        ("steps", "total", "left"),
        [
            pytest.param([], 10, None, id="nothing yet"),
            pytest.param([1], 10, 36, id="one step"),
            pytest.param([1, 2], 10, 32, id="two steps"),
            pytest.param([8, 9, 10], 10, 0, id="the last step"),
            pytest.param([1, 2], None, None, id="total unknown"),
        ],
    )
    def test_time_left(self, steps: list[int], total: int | None, left: int | None) -> None:
        view = RunView("run", "model", "Colocated", 0.0, total)
        for step in steps:
            view = with_step(view, 1, step, NOW, {STEP_SECONDS: 4.0})
        assert view.seconds_left() == left

    def test_a_validation_before_the_first_step_is_no_step_of_its_attempt(self) -> None:
        view = RunView("run", "model", "Colocated", 0.0, 10)
        for step in (1, 2, 3):
            view = with_step(view, 1, step, NOW, {STEP_SECONDS: 9.0, "m": 1.0})
        view = with_step(with_attempt(view, 2, 1, NOW), 2, 2, NOW, {"val-core/a/acc/mean@8": 0.5})
        assert (view.seconds_left(), view.curve("m")) == (None, [(1, 1.0), (2, 1.0)])
        assert with_step(view, 2, 3, NOW, {STEP_SECONDS: 4.0}).seconds_left() == 28

    def test_the_pace_of_an_earlier_attempt_is_forgotten(self) -> None:
        assert with_attempt(trained(30), 3, 2, NOW).seconds_left() is None

    def test_only_the_newest_events_are_kept(self) -> None:
        view = empty()
        for number in range(EVENTS_KEPT + 7):
            view = with_event(view, Note(NOW, "Said", str(number)))
        assert (len(view.events), view.events[0].message) == (EVENTS_KEPT, "7")

    def test_change_compares_five_steps_with_the_five_before(self) -> None:
        view = empty()
        for step in range(1, 11):
            view = with_step(view, 1, step, NOW, {"m": 1.0 if step > 5 else 0.5})
        assert view.change("m") == 0.5
        assert view.change("other") is None

    def test_a_missing_heartbeat_changes_nothing(self) -> None:
        assert with_heartbeat(trained(3), None) == trained(3)


SIZES = [(80, 24), (120, 40), (200, 60), (60, 18), (40, 10), (100, 30), (81, 25)]


class TestFit:
    @pytest.mark.parametrize(("width", "height"), SIZES, ids=[f"{w}x{h}" for w, h in SIZES])
    @pytest.mark.parametrize(
        "glyphs", [Glyphs(), Glyphs(braille=False), Glyphs(ascii=True)], ids=["dots", "blocks", "ascii"]
    )
    @pytest.mark.parametrize("steps", [0, 1, 2, 54, 120])
    def test_every_line_fits(self, width: int, height: int, glyphs: Glyphs, steps: int) -> None:
        lines = render(trained(steps), Screen(width, height, NOW, glyphs))
        assert len(lines) == height
        assert max(cell_len(line.plain) for line in lines) <= width

    def test_80x24_shows_everything(self) -> None:
        shown = text(trained(54))
        for word in (
            "arithmetic-20261121-0412-x7k2",
            "attempt 2 · 1 of 5 restarts",
            "elapsed 07:10",
            "about 4m37s left",
            "step 54 of 120",
            "45%",
            "generate → score → update → sync",
            "mini-batch 2 of 4",
            "mean@8",
            "mean probability",
            "all wrong",
            "mixed 50.0%",
            "all right",
            "2 generation batches",
            "12,345 tokens/s",
            "4.2s per step",
            "EntropyCollapse",
            "Ctrl-C",
        ):
            assert word in shown, word

    def test_a_wider_terminal_shows_all_figures(self) -> None:
        assert "clipped high 0.3% low 0.1% · gradient 0.41 · lr 5e-4" in text(trained(54), width=120)

    def test_ascii_means_ascii(self) -> None:
        assert text(trained(54), glyphs=Glyphs(ascii=True)).isascii()

    def test_before_the_first_step_the_start_is_told(self) -> None:
        view = with_heartbeat(empty(), Heartbeat("start", 0, 120, NOW - 12, "loading vLLM"))
        assert "start" in text(view)
        assert "loading vLLM  12s" in text(view)

    def test_a_stop_is_shown_immediately(self) -> None:
        assert "Ctrl-C again to stop immediately" in text(
            with_mood(trained(9), "stopping", "Saving. Press Ctrl-C again to stop immediately.")
        )


def test_the_views_of_these_tests_have_metrics_of_the_catalogue() -> None:
    assert [name for name in values(10) if not metrics.is_documented(name)] == []


class TestLines:
    def test_a_step(self) -> None:
        view = with_step(with_attempt(RunView("run", "m", "Colocated", NOW, 12), 1, 0, NOW), 1, 9, NOW, {})
        view = with_step(view, 1, 10, NOW + 4, values(10))
        line = step_line(view).split(" ", 1)[1]
        assert line == (
            "step 10/12  reward -0.185  accuracy 40.7%  length 20.2  entropy 0.42  addition mean@8 37.7%  "
            "step time 4.2s  left 8s".replace("-0", "\N{MINUS SIGN}0")
        )

    def test_an_event(self) -> None:
        assert note_line(Note(NOW, "Stalled", "No step.", warning=True)).endswith(" warning: Stalled: No step.")

    def test_a_phase(self) -> None:
        view = with_heartbeat(empty(), Heartbeat("start", 0, 120, NOW, "loading vLLM"))
        assert phase_line(view).endswith("attempt 0 start: loading vLLM")
