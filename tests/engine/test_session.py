"""Between verl's trainer and the stores: which checkpoint is offered when, and with which metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dapo_trainer.verl_adapter.session import Session


@dataclass
class Offers:
    """A report that remembers what it was offered."""

    checkpoints: list[tuple[int, Mapping[str, float]]] = field(default_factory=list)

    def checkpoint(self, step: int, folder: Path, metrics: Mapping[str, float]) -> None:
        self.checkpoints.append((step, metrics))


def session(offers: Offers) -> Session:
    report: Any = offers
    return Session(report, {})


def test_a_checkpoint_is_offered_once_its_metrics_are_on_record() -> None:
    offers = Offers()
    of = session(offers)
    of.saved(5, Path("global_step_5"))
    assert offers.checkpoints == []
    of.recorded(5, {"val": 0.5})
    of.recorded(6, {"val": 0.6})
    assert offers.checkpoints == [(5, {"val": 0.5})]


def test_the_checkpoint_of_a_stop_has_the_metrics_of_its_step() -> None:
    offers = Offers()
    of = session(offers)
    of.recorded(7, {"val": 0.7})
    of.saved(7, Path("global_step_7"))
    of.saved_after(7)
    assert offers.checkpoints == [(7, {"val": 0.7})]
