"""What the table of runs reads again, and what it does not."""

from pathlib import Path
from typing import Any

from dashboard_data import Store

from dapo_core.db import MetadataReader, open_reader
from dapo_dashboard.reads import run_list
from dapo_dashboard.reads.cached_reader import CachedReader


class Counted:
    """A reader that notes which runs its slow questions are about."""

    def __init__(self, url: str) -> None:
        self._reader: MetadataReader = open_reader(url)
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        def noted(run_ids: Any, *rest: Any) -> Any:
            self.asked.append((name, tuple(run_ids)))
            return getattr(self._reader, name)(run_ids, *rest)

        return noted if name in ("sparklines", "gpus", "validations") else getattr(self._reader, name)


def test_runs_that_ended_are_asked_for_once_and_again_when_they_went_on(tmp_path: Path) -> None:
    store, now = Store(tmp_path), [0.0]
    store.run("done", steps=3, state="Succeeded")
    store.run("going", steps=3)
    reader = Counted(store.url)
    cached = CachedReader("", opener=lambda url: reader, now=lambda: now[0])  # type: ignore[arg-type,return-value]

    def look() -> set[str]:
        now[0] += 2 * run_list.SPARKLINE_SECONDS
        reader.asked.clear()
        rows = run_list.read_rows(cached).value
        run_list.read_accelerators(cached, rows)
        assert set(run_list.read_results(cached, rows)) <= {row.run_id for row in rows}
        return {run for run, curve in run_list.read_sparklines(cached, rows).items() if curve}

    assert look() == {"done", "going"}
    assert len(reader.asked) == 5
    assert look() == {"done", "going"}
    assert reader.asked == [("validations", ("going",)), ("sparklines", ("going",))]
    store.attempt("done", 2, 3)
    store.steps("done", [4], attempt=2)
    store.run("new", steps=1, state="Failed")
    assert look() == {"done", "going", "new"}
    assert {(name, frozenset(ids)) for name, ids in reader.asked} == {
        ("gpus", frozenset({"new"})),
        *((what, frozenset(ids)) for what in ("sparklines", "validations") for ids in ({"done", "new"}, {"going"})),
    }
