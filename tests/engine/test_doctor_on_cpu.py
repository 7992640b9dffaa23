"""What `dapo doctor` measures, on processors: kernels against float64, and sums over gloo."""

import math
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dapo_trainer.doctor import bandwidth, kernel_accuracy
from dapo_trainer.doctor.all_reduce import bus_gb
from dapo_trainer.doctor.bandwidth import Fabric, Group
from dapo_trainer.doctor.check import CheckVerdict
from dapo_trainer.doctor.examination import kernels as run_kernels

pytestmark = pytest.mark.timeout(180)
LOOPBACK = Fabric("loopback", None)


def test_kernels_of_this_machine_agree_with_float64() -> None:
    checks = list(run_kernels("cpu"))
    assert [check.name for check in checks] == [
        "torch",
        "attention in float32",
        "attention in bfloat16",
        "log-probabilities",
    ]
    assert {check.verdict for check in checks} == {CheckVerdict.OK}, [check.sentence for check in checks]


@pytest.mark.parametrize("error", [0.5, math.nan, math.inf])
def test_wrong_results_end_a_pod(error: float) -> None:
    assert kernel_accuracy._compared("attention", error, 0.01).verdict == CheckVerdict.FAILED


def test_a_broken_attention_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask is missing: of all mistakes the one that only shows in numbers."""
    attention = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        kernel_accuracy.functional, "scaled_dot_product_attention", lambda q, k, v, is_causal: attention(q, k, v)
    )
    assert kernel_accuracy.attention_error("cpu", torch.float32) > 0.1


def test_a_process_that_ends_says_so() -> None:
    (check,) = run_kernels("cuda" if not torch.cuda.is_available() else "nonsense")  # type: ignore[arg-type]
    assert check.verdict == CheckVerdict.FAILED and check.name == "kernels"


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    assert bus_gb(8 * 10**9, 8, 1.0) == 14.0


def test_two_processes_of_one_machine() -> None:
    check = bandwidth.check(bandwidth.WITHIN, Group("cpu", 2), LOOPBACK)
    assert check.verdict == CheckVerdict.OK and "2 processes" in check.found


def test_two_machines() -> None:
    """Both run the command, and each reports the sum over all."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    groups = [Group("cpu", 1, 2, node, "127.0.0.1", port) for node in range(2)]
    with ThreadPoolExecutor() as pool:
        checks = list(pool.map(lambda group: bandwidth.check(bandwidth.BETWEEN, group, LOOPBACK), groups))
    assert [check.verdict for check in checks] == [CheckVerdict.OK] * 2, [check.sentence for check in checks]


def test_a_machine_that_does_not_come_is_a_warning() -> None:
    check = bandwidth.check(bandwidth.BETWEEN, Group("cpu", 1, 2, 0, "127.0.0.1", 0, meet_seconds=1.0), LOOPBACK)
    assert check.verdict == CheckVerdict.WARNING and "did not answer" in check.found
