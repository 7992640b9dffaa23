"""What is done just before a module is imported."""

import sys
from pathlib import Path

import pytest

from dapo_trainer.verl_adapter.import_hooks import before_import


def test_every_action_before_a_module_is_carried_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_late.py").write_text("VALUE = 1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    done: list[str] = []
    for name in ("first", "second", "third"):
        before_import("imported_late", lambda name=name: done.append(name))  # type: ignore[misc]
    assert done == []
    import imported_late  # type: ignore[import-not-found]

    assert imported_late.VALUE == 1 and sorted(done) == ["first", "second", "third"]
    monkeypatch.delitem(sys.modules, "imported_late")
    __import__("imported_late")
    before_import("sys", lambda: done.append("at once"))
    assert done[3:] == ["at once"]
