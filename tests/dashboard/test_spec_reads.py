"""What is read of the specs of all runs: of each run once, a bounded part at once, and of each namespace in turn."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import builders
import pytest
from dashboard_data import Store

from dapo_core.db import MetadataReader, RunTableRow, open_reader
from dapo_core.db.run_table import MAX_FIELD
from dapo_dashboard.reads import spec_reads
from dapo_dashboard.reads.cached_reader import CachedReader
from dapo_dashboard.reads.chosen_columns import read_extras
from dapo_dashboard.reads.run_list import read_accelerators, read_rows
from dapo_dashboard.reads.spec_reads import FIRST, MOST, in_turn, with_new

SEED = "field data.seed"


def row(run_id: str, namespace: str) -> RunTableRow:
    return RunTableRow(
        run_id, run_id, namespace, "Running", None, None, 1.0, None, None, None, None, {}, 1, 1, 1.0, 0, {}
    )


class Loads:
    """A database that takes `seconds` for each run, by a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.now, self.seconds, self.asked = 0.0, seconds, list[list[str]]()
        monkeypatch.setattr(spec_reads.time, "monotonic", lambda: self.now)

    def __call__(self, run_ids: Sequence[str]) -> Mapping[str, int]:
        self.asked.append(list(run_ids))
        self.now += self.seconds * len(run_ids)
        return {run_id: 8 for run_id in run_ids if run_id != "odd"}


def test_no_run_is_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    loads, rows = Loads(monkeypatch, 0.0), [row("r", "a"), row("odd", "a")]
    known = with_new({}, rows, loads, 0)
    assert known == {"r": 8, "odd": 0}
    assert with_new(known, rows, loads, 0) is known and len(loads.asked) == 1


def test_e4_long_specs_of_one_namespace_hold_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spec takes a tenth of a second: the page waits for a few, and the next goes on from there."""
    loads = Loads(monkeypatch, 0.1)
    rows = [*(row(f"b{number}", "b") for number in range(500)), row("a1", "a"), row("a2", "a")]
    known = with_new({}, rows, loads, 0)
    assert {"a1", "a2"} <= known.keys() and loads.now < spec_reads.SECONDS + 2 * FIRST * 0.1
    before = loads.now
    assert with_new(known, rows, loads, 0).keys() > known.keys()
    assert loads.now - before < spec_reads.SECONDS + 2 * FIRST * 0.1
    assert in_turn(rows)[:4] == ["b0", "a1", "b1", "a2"]


def test_many_short_specs_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = Loads(monkeypatch, 0.0)
    assert len(with_new({}, [row(f"r{number}", "a") for number in range(5_000)], loads, 0)) == 5_000
    assert len(loads.asked) < 90 and max(map(len, loads.asked)) == MOST


def test_e4_a_field_is_read_once_and_cut(tmp_path: Path) -> None:
    """The viewer chooses a column, and a tenant how long its field is."""
    store, asked = Store(tmp_path), list[Any]()
    spec = builders.dumped(builders.job())
    spec["spec"]["data"]["seed"] = "x" * 500_000
    store.run("r", steps=1, spec=spec)
    whole = open_reader(store.url)

    class Counted:
        def __getattr__(self, name: str) -> Any:
            return getattr(whole, name)

        def spec_fields(self, *words: Any) -> Any:
            asked.append(words)
            found = whole.spec_fields(*words)
            assert all(len(text) <= MAX_FIELD for values in found.values() for text in values.values())
            return found

    times = iter(range(0, 1000, 10))
    reader = CachedReader("", opener=lambda url: Counted(), now=lambda: next(times))  # type: ignore[arg-type,return-value]
    for _ in range(3):
        rows = read_rows(reader).value
        found = read_extras(reader, rows, [SEED])
        assert str(found[SEED]["r"]).startswith("xxx") and len(str(found[SEED]["r"])) < 200
        assert read_accelerators(reader, rows).keys() == {"r"}
    assert len(asked) == 1
    assert isinstance(whole, MetadataReader)
