"""How many threads the data queue copies tensors with: no more than there are cores, of which it warns in each call."""

import logging

import engines
import psutil
import pytest

from dapo_trainer.verl_adapter import environment


@pytest.mark.parametrize(
    ("cores", "asked", "threads"),
    [
        pytest.param(2, None, "2", id="small machine"),
        pytest.param(64, None, "8", id="large machine"),
        pytest.param(None, None, "8", id="unknown"),
        pytest.param(2, "1", "1", id="asked for"),
    ],
)
def test_the_queue_has_no_more_threads_than_cores(
    cores: int | None, asked: str | None, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: cores)
    monkeypatch.delenv("TQ_NUM_THREADS", raising=False)
    if asked is not None:
        monkeypatch.setenv("TQ_NUM_THREADS", asked)
    assert environment("cpu")["TQ_NUM_THREADS"] == environment("cuda")["TQ_NUM_THREADS"] == threads


def test_the_queue_does_not_warn_on_a_small_machine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    common = engines.load("transfer_queue.utils.common")
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 2)
    monkeypatch.delenv("TQ_NUM_THREADS", raising=False)
    monkeypatch.setattr(common.logger, "propagate", True)
    with (
        caplog.at_level(logging.WARNING, logger=common.logger.name),
        common.limit_pytorch_auto_parallel_threads(int(environment("cpu")["TQ_NUM_THREADS"])),
    ):
        assert caplog.messages == []
